"""What a lookup returns: frozen dataclasses over arrays. `Answers` for many queries, `Answer` for one.

Does not compute anything but the picking of one query out of many. Does not hold the rows themselves, only their
numbers.

Shapes: b queries, p value width, s rows shown, h heads. Arrays are NumPy or torch, whichever was asked with.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from softkv.errors import ShapeError

Array: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Contributor:
    """One of the rows that an answer is made of."""

    row: int
    weight: float  # its share of the mass of all rows; with heads, the mean of its shares
    score: float  # how alike query and key are: the compatibility, before bias and temperature


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The answer to one query. Single numbers are floats, or tensors without axes when asked with tensors.

    >>> import softkv
    >>> answer = softkv.soft_lookup([1.0, 0.0], [[2.0, 0.0], [0.0, 2.0]], [10.0, 20.0], compatibility="dot")
    >>> round(answer.value, 3), [round(one.weight, 3) for one in answer.contributors]
    (11.192, [0.881, 0.119])
    """

    value: Any  # the mean number, the mean vector (p,), or the distribution over `labels`
    spread: Any  # the weighted standard deviation of numbers, else None
    log_mass: Any  # log of the summed exp(logit) of all rows: how much is known here; with heads (h,)
    effective: Any  # how many rows really contributed; with heads (h,)
    mass: Any  # the share of the full mass that the rows in the value hold; with heads (h,)
    scored: int  # how many rows are in the value
    temperature: Any
    contributors: tuple[Contributor, ...]  # the heaviest first
    head_weights: Array | None = None  # (h, s), the shares of the contributors in each head
    labels: tuple[object, ...] | None = None

    @property
    def label(self) -> object:
        """The most probable label, or None when the values are not labels."""
        return None if self.labels is None else self.labels[int(self.value.argmax())]


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """The answers to many queries: arrays first, an `Answer` for each on demand.

    Leading axes of the queries are leading axes of every array, before the (b, ...) given here.
    """

    value: Array  # (b,) numbers, (b, p) vectors, (b, labels) distributions; with heads (b, o)
    spread: Array | None  # (b,), for numbers
    log_mass: Array  # (b,); with heads (b, h)
    effective: Array  # (b,); with heads (b, h)
    mass: Array  # (b,); with heads (b, h)
    scored: Array  # (b,)
    temperature: Any  # one for all, or (b,)
    rows: Array  # (b, s), the heaviest first; -1 where there are fewer
    weights: Array  # (b, s)
    scores: Array  # (b, s)
    head_weights: Array | None = None  # (b, h, s)
    labels: tuple[object, ...] | None = None

    def __len__(self) -> int:
        return int(self.scored.shape[0])

    def __iter__(self) -> Iterator[Answer]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Answer:
        if self.scored.ndim != 1:
            raise ShapeError(
                f"these answers have axes {tuple(self.scored.shape)}, so one index names no query. Index their arrays."
            )
        return Answer(
            value=_single(self.value[index]),
            spread=None if self.spread is None else _single(self.spread[index]),
            log_mass=_single(self.log_mass[index]),
            effective=_single(self.effective[index]),
            mass=_single(self.mass[index]),
            scored=int(self.scored[index]),
            temperature=_single(self.temperature[index] if getattr(self.temperature, "ndim", 0) else self.temperature),
            contributors=self._contributors(index),
            head_weights=None if self.head_weights is None else self.head_weights[index],
            labels=self.labels,
        )

    @property
    def label(self) -> tuple[object, ...] | None:
        """The most probable label of each query, in order, or None when the values are not labels."""
        if self.labels is None:
            return None
        return tuple(self.labels[code] for code in self.value.argmax(-1).reshape(-1).tolist())

    def _contributors(self, index: int) -> tuple[Contributor, ...]:
        columns = (self.rows[index].tolist(), self.weights[index].tolist(), self.scores[index].tolist())
        return tuple(Contributor(*one) for one in zip(*columns, strict=True) if one[0] >= 0)


def _single(x: Any) -> Any:
    """A number as a float; what has axes, or a gradient to carry, as it is."""
    if not hasattr(x, "ndim") or x.ndim or hasattr(x, "requires_grad"):
        return x
    return x.item()
