"""Divide a change into the parts of shards, and join their results.

Does not write them (store.py).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from softkv.doors.cluster.manifest import MOST
from softkv.doors.cluster.shard import Shard
from softkv.doors.cluster.whole import WholeSnapshot
from softkv.errors import PartlyAdded
from softkv.storage import Added
from softkv.storage.batch import Batch, shown
from softkv.storage.threads import beside

AT_ONCE = 32  # shards that are written to


def outcomes(calls: Sequence[Callable[[], Any]], *, at_once: bool) -> list[Any]:
    """The results of calls, or their errors; even after an interrupt, no call is running when this returns."""
    found, most = list[Any](), AT_ONCE if at_once else 1
    for start in range(0, len(calls), most):
        mine, *rest = calls[start : start + most]
        with beside(*(partial(_outcome, call) for call in rest)) as others:
            found.append(_outcome(mine))
        found += [one.result() for one in others]
    return found


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return error


def keys_of(batch: Batch, places: Sequence[int]) -> list[str]:
    """The keys of some items of a batch, where they have any."""
    return [key for key in (batch.keys[place] for place in places) if key is not None]


def columns_of(batch: Batch, places: Sequence[int], payloads: Sequence[Any] | None) -> dict[str, Any]:
    """Some items of a batch, as columns for a store."""
    part, kind = batch.take(places), batch.layout.kind
    texts, worded, _ = zip(*part.contents, strict=True) if part.contents else (None, None, None)
    values: Any = part.labels if kind.coded else worded if kind.embedded else part.values
    return {
        "vectors": part.vectors,
        "values": values[:, 0] if kind.scalar else values,
        "keys": part.keys,
        "texts": texts,
        "payloads": None if payloads is None else [payloads[place] for place in places],
        "value_vectors": part.values if kind.embedded else None,
    }


def numbers_of(added: Added) -> list[int]:
    """The result of a part, as numbers to record."""
    return [added.first_row, added.first_number, added.count, added.replaced, added.ignored]


def added_by(parts: Mapping[int, list[int]], whole: WholeSnapshot) -> Added:
    """The result of all parts; of several parts, without rows and numbers, which are not consecutive."""
    some = {shard: part for shard, part in parts.items() if part[2] or part[4]}
    _, _, *counts = np.sum([[0] * 5, *some.values()], 0).tolist()
    if len(some) != 1:
        return Added(0, 0, *counts)
    ((shard, (row, number, *_)),) = some.items()
    return Added(int(whole.offsets[shard]) + row, number * MOST + shard, *counts)


def partly_added(
    name: str | None,
    shards: Sequence[Shard],
    done: Mapping[int, Any],
    refused: Mapping[int, Exception],
    unknown: Mapping[int, Exception],
) -> PartlyAdded:
    """The error that names the shards that have done their part."""
    first = next(iter([*refused.values(), *unknown.values()]))
    again = "Make the same change again" if name is None else f"Send it again as it was, with batch={shown(name)}"
    return PartlyAdded(
        f"{len(done)} of {len(done) + len(refused) + len(unknown)} shards have done their part, and others have not "
        f"({first}). {again}, to complete it: shards that have their part do nothing twice.",
        name,
        *([shards[number].path for number in some] for some in (done, refused, unknown)),
    )
