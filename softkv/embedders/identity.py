"""What a store records of its embedder, so that another one is refused.

Names are not enough: a model of the same name may have changed, and the same model may have another name. So behaviour
is compared, by a fingerprint: the vectors of a few fixed texts, as documents and as queries. Each vector is projected
to 32 numbers by random signs, which preserves distances well enough and keeps a fingerprint at two kilobytes for any
width.

Does not judge which embedder is better.
"""

import hashlib
import math
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from softkv.embedders.embedder import Embedder
from softkv.embedders.vectors import PROBES, shown
from softkv.errors import EmbedderMismatch, StoreDamaged, UnknownText
from softkv.ndarrays import Floats, Matrix

Sketch = tuple[float, ...] | None  # None: the embedder knows no word of this text

# Rounding differs between processors, libraries and half precision by less than one percent; models, prompts and
# poolings by more than ten.
TOLERANCE = 0.02

_NUMBERS = 32
_QUERIES = PROBES[1:3]
_COUNT = len(PROBES) + len(_QUERIES)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a store records of its embedder."""

    name: str
    width: int
    normalised: bool
    query_prompt: str | None
    document_prompt: str | None
    fingerprint: tuple[Sketch, ...]  # of the fixed texts as documents, then of some of them as queries

    @classmethod
    def of(cls, embedder: Embedder) -> "Identity":
        """The identity of an embedder, computed by embedding the fixed texts."""
        documents = [_sketch(embedder.documents, text) for text in PROBES]
        queries = [_sketch(embedder.queries, text) for text in _QUERIES]
        return cls(**{name: getattr(embedder, name) for name in _FIELDS}, fingerprint=(*documents, *queries))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, about two kilobytes."""
        return asdict(self) | {"fingerprint": [None if one is None else list(one) for one in self.fingerprint]}

    @classmethod
    def from_json(cls, given: Any) -> "Identity":
        """Read the result of `to_json`; anything else is a StoreDamaged."""
        wrong = _wrong(given)
        if wrong:
            raise StoreDamaged(
                f"what this store remembers of its embedder cannot be believed: {wrong}. Run `softkv check` on it, or "
                f"restore it from a backup."
            )
        sketches = tuple(None if one is None else tuple(float(x) for x in one) for one in given["fingerprint"])
        return cls(**{**{name: given[name] for name in _FIELDS}, "fingerprint": sketches})

    def require(self, embedder: Embedder, path: str) -> None:
        """Raise unless an embedder behaves like the one that the store at this path was made with."""
        now = Identity.of(embedder)
        difference = self._difference(now)
        if difference:
            other = "another version of it" if now.name == self.name else f"{now.name!r}"
            raise EmbedderMismatch(
                f"the store at {path} was made with the embedder {self.name!r}, and {other} behaves differently: "
                f"{difference}. Their vectors cannot be compared. Use the one it was made with, or embed its texts "
                f"anew: softkv reembed --db {shlex.quote(path)} -m {shlex.quote(now.name)}"
            )

    def _difference(self, now: "Identity") -> str | None:
        if now.width != self.width:
            return f"it gives vectors of width {now.width}, expected {self.width}"
        asked = [f"the text {shown(text)}" for text in PROBES] + [f"the query {shown(text)}" for text in _QUERIES]
        pairs = zip(self.fingerprint, now.fingerprint, strict=True)
        share, what = max((_apart(then, today), what) for what, (then, today) in zip(asked, pairs, strict=True))
        return f"its vector of {what} is off by {share:.0%}" if share > TOLERANCE else None


_FIELDS = {"name": str, "width": int, "normalised": bool, "query_prompt": str, "document_prompt": str}
_OPTIONAL = ("query_prompt", "document_prompt")


def _wrong(given: Any) -> str | None:
    """What is wrong with the JSON of an identity."""
    if not isinstance(given, dict):
        return f"expected an object, got {type(given).__name__}"
    for name, kind in _FIELDS.items():
        value = given.get(name)
        if type(value) is not kind and not (value is None and name in _OPTIONAL):
            return f"{name} is {value!r}"
    if given["width"] < 1:
        return f"width is {given['width']}"
    sketches = given.get("fingerprint")
    if not isinstance(sketches, list) or len(sketches) != _COUNT or not all(_is_sketch(one) for one in sketches):
        return f"fingerprint is not a list of {_COUNT} rows of {_NUMBERS} numbers"
    return None


def _is_sketch(given: Any) -> bool:
    if given is None:
        return True
    if not isinstance(given, list) or len(given) != _NUMBERS:
        return False
    return all(type(number) in (int, float) and abs(number) < 1e300 and math.isfinite(number) for number in given)


def _sketch(embed: Callable[[list[str]], Matrix], text: str) -> Sketch:
    try:
        vectors = embed([text])
    except UnknownText:
        return None
    numbers = vectors[0].astype(np.float64) @ _signs(vectors.shape[1])
    return tuple(float(f"{number:.6g}") for number in numbers)


def _signs(width: int) -> Floats:
    """A fixed matrix of random signs, (width, 32); from a hash, because a generator may change with its library."""
    bits = np.frombuffer(hashlib.shake_256(b"softkv fingerprint").digest(width * _NUMBERS // 8), dtype=np.uint8)
    signs = 1.0 - 2.0 * np.unpackbits(bits).reshape(width, _NUMBERS).astype(np.float64)
    return signs / math.sqrt(_NUMBERS)


def _apart(then: Sketch, now: Sketch) -> float:
    """The distance of two sketches, as a share of the length of the first."""
    if then is None or now is None:
        return 0.0 if then is now else 1.0
    length = math.hypot(*then)
    distance = math.dist(then, now)
    return distance / length if length > 0 else float(distance > 0)
