"""Which answers the guard of a store covers: those to questions like its calibration, while items are nearly the same.

Does not calibrate it (softkv/database/guarding.py).
"""

from typing import Any

import numpy as np

from softkv.asking.profile import Profile
from softkv.asking.question import LEARNED, Question
from softkv.errors import StoreDamaged
from softkv.guard.guard import CHANGED, Guard
from softkv.storage import Snapshot

AGAIN = "Make it again with `guard`."


def guard_of(profile: Profile, snapshot: Snapshot) -> tuple[Guard | None, str | None]:
    """The guard of a store, if it has one, and why it does not hold for the present items, if it does not."""
    told = profile.others.get("guard")
    if told is None:
        return None, None
    try:
        guard = Guard.from_json(told, now=len(snapshot))
        kind, stale = guard.about["kind"], _stale(guard, profile, snapshot)
        # Read everything that is used later, so that damage is reported here.
        str(guard), guard.about["compatibility"], float(guard.about["temperature"])
    except (KeyError, TypeError, ValueError) as error:
        raise StoreDamaged(f"the guard of the store cannot be read ({error}). Drop it with `forget_guard`.") from error
    if snapshot.layout is not None and kind != snapshot.layout.kind.value:
        raise StoreDamaged(f"the guard of the store is about values of kind {kind!r}. Drop it with `forget_guard`.")
    return guard, stale


def _stale(guard: Guard, profile: Profile, snapshot: Snapshot) -> str | None:
    """Why a guard no longer covers the answers of a store."""
    changed, items = guard.changed(snapshot.rows, len(snapshot)), guard.base[1]
    if profile.projection != guard.about["projection"]:
        return f"the store has learned to compare otherwise since the guard was made. {AGAIN}"
    if (None if profile.embedder is None else profile.embedder.to_json()) != guard.about["embedder"]:
        return f"the items were embedded anew since the guard was made. {AGAIN}"
    if changed / max(1, items) >= CHANGED:
        return f"{changed:,} items changed since the guard was made of {items:,}. {AGAIN}"
    return None


def promised(guard: Guard | None, stale: str | None, question: Question) -> dict[str, Any]:
    """Fields of `Answers`: the guard if it covers answers to a question, else why it does not."""
    if guard is None:
        return {}
    why = stale or _unlike(guard.about, question)
    return {"guard": guard} if why is None else {"unguarded": why}


def _unlike(about: Any, question: Question) -> str | None:
    """Why a question is unlike those that the guard was calibrated on."""
    if not question.asks_all or question.heads is not None or question.k is not None:
        return "the guard is about lookups of all items, without k, a filter, a mask or heads"
    return unlike(about, question.compatibility, question.temperature)


def unlike(about: Any, compared: Any, temperature: Any) -> str | None:
    """Why lookups that compare so, at this temperature, are unlike those that the guard was calibrated on."""
    if compared != about["compatibility"]:
        usual = "what was learned" if about["compatibility"] == LEARNED else repr(about["compatibility"])
        return f"the guard is about comparing by {usual}. {AGAIN}"
    if np.ndim(temperature) or temperature != about["temperature"]:
        return f"the guard is about temperature {about['temperature']:.4g}. {AGAIN}"
    return None
