"""The data of a page: some items of a store, complete, with queries and the log masses of left-out items.

Vectors are those that the page compares. Where a metric was learned, they are L(k − c), whose learned logit is that of
a gaussian. If the store has more items than asked for, a sample is drawn with a seed.

Runs no lookups except for the log masses of left-out items; does not write files (writer.py).

Shapes: n items, d width of the vectors that are compared, b queries.
"""

import base64
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from softkv.asking.promised import unlike
from softkv.asking.question import LEARNED
from softkv.asking.view import View
from softkv.errors import InputError, NotExpressible
from softkv.maths.heads import Heads
from softkv.maths.inputs import is_whole
from softkv.maths.principal import PrincipalPlane
from softkv.ndarrays import AnyArray, Reals
from softkv.plain import soft_lookup
from softkv.portrait import facts_of, value_of
from softkv.storage import Item

SEED = 0
LEFT_OUT = 256  # items that are left out and asked, for the evidence
LARGEST, MOST = 1 << 23, 100_000  # numbers of vectors in a page, and items
LONGEST = 1000  # characters of a key, a text or a value that a page carries
LONGEST_PAYLOAD = 4096  # characters of the JSON of a payload
PORTION = 256  # items that are read at a time, since their payloads may be large
FIELDS = (
    "name", "total", "drawn", "compared", "learned", "temperature", "width", "wide", "vectors", "places", "share",
    "plane", "heads", "evidence", "guard", "kind", "values", "labels", "value_width", "keys", "numbers", "texts",
    "payloads", "queries",
)  # fmt: skip # of what a store shows; a tour has more


@dataclass(frozen=True, slots=True, eq=False)
class PageQueries:
    """The queries of a page, and the answers of the whole store to them."""

    names: Sequence[str]
    texts: bool  # whether the names are what was asked
    vectors: Reals  # (b, d)
    answers: Any  # of the store, one for each


def scene_of(view: View, name: str, asked: PageQueries, *, items: int, heads: Heads | None) -> dict[str, Any]:
    """The data of a page, as plain Python for JSON."""
    rows, drawn = _drawn(view, items)
    _require_room(len(rows), view.layout.key_width)
    compared, temperature, vectors, queries = _compared(view, rows, asked, heads)
    plane = PrincipalPlane.of(_directions(compared, vectors))
    projected = vectors.dtype == np.float64
    heads_there = None if heads is None else {part: np.asarray(x).tolist() for part, x in heads.arrays().items()}
    return {
        "name": name,
        "total": len(view.snapshot),
        "drawn": drawn,
        "compared": compared,
        "learned": view.profile.projection is not None and heads is None,
        "temperature": temperature,
        "width": int(vectors.shape[1]),
        "wide": projected,
        "vectors": _packed(vectors),
        "places": _packed(plane.placed(_directions(compared, vectors)).astype(np.float32)),
        "share": plane.share,
        "plane": {"unit": plane.unit, "middle": plane.middle.tolist(), "axes": plane.axes.tolist()},
        "heads": heads_there,
        "evidence": None if heads is not None else _left_out(vectors, compared, temperature),
        "guard": None if heads is not None else _guard(view, compared, temperature),
        **_values(view, rows),
        **_told(view, rows),
        "queries": [
            {
                "name": _cut(name),
                "text": name if asked.texts else None,
                "vector": vector.tolist(),
                "given": given.tolist() if projected else None,  # as the store is asked
                "value": value_of(answer),
                "facts": facts_of(answer),
                "known": answer.known,
            }
            for name, vector, given, answer in zip(asked.names, queries, asked.vectors, asked.answers, strict=True)
        ],
    }


def _drawn(view: View, items: int) -> tuple[npt.NDArray[np.int64], int | None]:
    """The rows that a page shows, in the order of the store, and the seed that they were drawn with, if they were."""
    if not is_whole(items) or items < 1:
        raise InputError(f"expected items to be a whole number from 1 on, got {items!r}.")
    rows = view.sound_order
    if len(rows) <= items:
        return rows, None
    return rows[np.sort(np.random.default_rng(SEED).choice(len(rows), items, replace=False))], SEED


def _require_room(count: int, width: int) -> None:
    """Raise if this is too much for a page, before any of it is read."""
    most = min(LARGEST // width, MOST)
    if count > most:
        wide = f"{count:,} vectors of width {width:,}"
        room = f"{LARGEST:,} numbers and {MOST:,} items at most"
        raise InputError(f"{wide} are too much for a page, which carries {room}. Ask for items={most}.")


def _compared(
    view: View, rows: npt.NDArray[np.int64], asked: PageQueries, heads: Heads | None
) -> tuple[str, float, Reals, Reals]:
    """The compatibility and temperature of the page, the vectors of keys (n, d), and those of queries (b, d)."""
    keys: Reals = view.snapshot.vectors(rows)
    if heads is not None:
        if view.layout.kind.worded:
            raise NotExpressible(
                "heads project values, and a page projects numbers and vectors alone. Leave out heads."
            )
        if heads.query_width != keys.shape[1] and not len(asked.vectors):
            wide = f"queries of width {heads.query_width}, which no key has (they have {keys.shape[1]})"
            raise InputError(f"these heads take {wide}, so a page needs some. Give queries.")
        return "scaled_dot", 1.0, keys, asked.vectors
    learned = view.learned
    if learned is None:
        compared = view.profile.compatibility or "dot"
        return compared, view.temperature(compared).value, keys, asked.vectors
    metric = replace(learned.metric, factors=learned.metric.factors.astype(np.float64))
    # In float64 from here on, as numbers of keys are: a float32 of L(k − c) would be off in the seventh digit.
    projected = [metric.projected(one.astype(np.float64)) for one in (keys, asked.vectors)]
    return "gaussian", learned.temperature.value, projected[0], projected[1]


def _directions(compared: str, vectors: Reals) -> Reals:
    """Vectors as they are drawn: scaled to length 1 where lengths do not count (cosine)."""
    if compared != "cosine":
        return vectors
    exact = vectors.astype(np.float64)
    found: Reals = exact / np.linalg.norm(exact, axis=1, keepdims=True)
    return found


def _left_out(vectors: Reals, compared: str, temperature: float) -> list[float] | None:
    """The log masses of some items, each left out and looked up in the others, ascending; None for a single item."""
    count = len(vectors)
    if count < 2:
        return None
    asked = np.random.default_rng(SEED).permutation(count)[:LEFT_OUT]
    exact = vectors.astype(np.float64)
    others = asked[:, None] != np.arange(count)[None, :]
    options: dict[str, Any] = {"compatibility": compared, "temperature": temperature, "mask": others, "show": 0}
    found: Any = soft_lookup(exact[asked], exact, np.zeros(count), **options)
    return sorted(found.log_mass.tolist())


def _guard(view: View, compared: str, temperature: float) -> dict[str, Any] | None:
    """The figures and promises of the store's guard, or why it does not apply; None without a guard."""
    guard, stale = view.guard
    if guard is None:
        return None
    stale = stale or unlike(guard.about, compared if view.profile.projection is None else LEARNED, temperature)
    if stale is not None:
        return {"told": stale}
    evidence = guard.evidence.values[np.isfinite(guard.evidence.values)].tolist()
    return {"told": str(guard), "threshold": guard.threshold, "coded": guard.coded, "evidence": evidence}


def _values(view: View, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
    """The values of items: numbers, vectors, codes with their labels, or texts."""
    kind, found = view.layout.kind, view.snapshot.values(rows)
    told: dict[str, Any] = {"kind": kind.value, "values": None, "labels": None}
    if kind.embedded:
        return told | {"values": [_cut(str(item.value)) for item in _items(view, rows)]}
    if not kind.narrow:
        return told | {"values": _packed(found), "value_width": int(found.shape[1])}
    if not kind.coded:
        return told | {"values": found.tolist()}
    codes, places = np.unique(found, return_inverse=True)
    names = view.labels or ()
    return told | {"values": places.tolist(), "labels": [_cut(names[code]) for code in codes.tolist()]}


def _told(view: View, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
    """The data of items except vectors and values: keys, numbers, texts where they are not the keys, and payloads."""
    told: dict[str, list[Any]] = {"keys": [], "numbers": [], "texts": [], "payloads": []}
    for one in _items(view, rows):
        told["keys"].append(None if one.key is None else _cut(one.key))
        told["numbers"].append(one.number)
        told["texts"].append(None if one.text in (None, one.key) else _cut(one.text))
        told["payloads"].append(_brief(one.payload))
    return told


def _items(view: View, rows: npt.NDArray[np.int64]) -> Iterator[Item]:
    for start in range(0, len(rows), PORTION):
        yield from view.snapshot.items(rows[start : start + PORTION])


def _brief(payload: Any) -> Any:
    """A payload, or the beginning of its JSON as a text where that is long."""
    spelled = json.dumps(payload, ensure_ascii=False)
    return payload if len(spelled) <= LONGEST_PAYLOAD else _cut(spelled)


def _cut(text: str) -> str:
    """A text, cut after some thousand characters; a checksum tells it from others that begin alike."""
    if len(text) <= LONGEST:
        return text
    checksum = zlib.crc32(text.encode("utf-8", "replace"))
    return f"{text[:LONGEST]}… ({len(text) - LONGEST:,} more characters, {checksum:08x})"


def _packed(numbers: AnyArray) -> str:
    """Numbers as base64 of little-endian floats."""
    return base64.b64encode(np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<")).tobytes()).decode()
