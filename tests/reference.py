"""The maths of a soft lookup, the slow and obvious way: float64, one query, one row at a time, `math.fsum`.

The tests compare everything fast with this file. It is meant to be read and believed, so it has no arrays, no blocks
and no shortcuts, and it imports nothing from softkv.

A query, a key or a value is a sequence of floats; keys and values are sequences of those.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Vector = Sequence[float]
Score = Callable[[Vector, Vector], float]


def dot(query: Vector, key: Vector) -> float:
    """q·k."""
    return math.fsum(a * b for a, b in zip(query, key, strict=True))


def scaled_dot(query: Vector, key: Vector) -> float:
    """q·k / √d."""
    return dot(query, key) / math.sqrt(len(key))


def cosine(query: Vector, key: Vector) -> float:
    """q·k / (‖q‖‖k‖)."""
    return dot(query, key) / (math.hypot(*query) * math.hypot(*key))


def gaussian(query: Vector, key: Vector) -> float:
    """-½‖q - k‖²."""
    return -0.5 * math.fsum((a - b) ** 2 for a, b in zip(query, key, strict=True))


def laplace(query: Vector, key: Vector) -> float:
    """-‖q - k‖₁."""
    return -math.fsum(abs(a - b) for a, b in zip(query, key, strict=True))


def student(query: Vector, key: Vector) -> float:
    """-log(1 + ½‖q - k‖²), which gives weights the heavy tails of Student's t."""
    return -math.log1p(0.5 * math.fsum((a - b) ** 2 for a, b in zip(query, key, strict=True)))


def uniform(query: Vector, key: Vector) -> float:
    """0, so that all rows count alike."""
    return 0.0


def bilinear(matrix: Sequence[Vector]) -> Score:
    """The score qᵀWk."""
    return lambda query, key: dot(query, project(matrix, key))


def additive(query_matrix: Sequence[Vector], key_matrix: Sequence[Vector], direction: Vector) -> Score:
    """The score vᵀtanh(W_q q + W_k k)."""

    def score(query: Vector, key: Vector) -> float:
        asked, stored = project(query_matrix, query), project(key_matrix, key)
        return dot(direction, [math.tanh(a + b) for a, b in zip(asked, stored, strict=True)])

    return score


def project(matrix: Sequence[Vector], vector: Vector, offset: Vector | None = None) -> list[float]:
    """W·x + b."""
    products = [dot(row, vector) for row in matrix]
    return products if offset is None else [a + b for a, b in zip(products, offset, strict=True)]


@dataclass
class Expected:
    """What a soft lookup of one query should say."""

    value: list[float]
    weights: list[float]  # one per row, summing to 1 over the rows used
    logits: list[float]  # one per row; -inf where masked
    log_mass: float
    effective: float
    mass: float  # the share of the full mass that the rows used hold
    spread: list[float]


def lookup(
    query: Vector,
    keys: Sequence[Vector],
    values: Sequence[Vector],
    *,
    score: Score = scaled_dot,
    temperature: float = 1.0,
    k: int | None = None,
    mask: Sequence[bool] | None = None,
    bias: Vector | None = None,
) -> Expected:
    """The softmax-weighted mean of the values, and what goes with it."""
    logits = []
    for row, key in enumerate(keys):
        if mask is not None and not mask[row]:
            logits.append(-math.inf)
        else:
            logits.append((score(query, key) + (bias[row] if bias is not None else 0.0)) / temperature)
    log_mass = log_sum(logits)
    used = heaviest(logits, len(logits) if k is None else k)
    log_used = log_sum([logits[row] for row in used])
    weights = [math.exp(logit - log_used) if row in used else 0.0 for row, logit in enumerate(logits)]
    mean = weighted_mean(weights, values)
    entropy = -math.fsum(w * math.log(w) for w in weights if w > 0)
    return Expected(
        value=mean,
        weights=weights,
        logits=logits,
        log_mass=log_mass,
        effective=math.exp(entropy),
        mass=math.exp(log_used - log_mass),
        spread=[
            math.sqrt(math.fsum(w * (value[j] - mean[j]) ** 2 for w, value in zip(weights, values, strict=True)))
            for j in range(len(mean))
        ],
    )


def log_sum(logits: Vector) -> float:
    """The logarithm of the summed exp(logit)."""
    peak = max(logits)
    return peak + math.log(math.fsum(math.exp(logit - peak) for logit in logits))


def heaviest(logits: Vector, k: int) -> list[int]:
    """The k rows of the highest logits, the first of equals first, masked rows never."""
    order = sorted(range(len(logits)), key=lambda row: -logits[row])
    return [row for row in order[:k] if logits[row] > -math.inf]


def weighted_mean(weights: Vector, values: Sequence[Vector]) -> list[float]:
    """The mean of each column of the values."""
    return [
        math.fsum(w * value[j] for w, value in zip(weights, values, strict=True)) / math.fsum(weights)
        for j in range(len(values[0]))
    ]


@dataclass
class Head:
    """The projections of one head."""

    query_matrix: Sequence[Vector]
    query_offset: Vector
    key_matrix: Sequence[Vector]
    key_offset: Vector
    value_matrix: Sequence[Vector]
    value_offset: Vector


def multi_head(
    query: Vector,
    keys: Sequence[Vector],
    values: Sequence[Vector],
    *,
    heads: Sequence[Head],
    output_matrix: Sequence[Vector],
    output_offset: Vector,
    score: Score = scaled_dot,
    temperature: float = 1.0,
) -> tuple[list[float], list[Expected]]:
    """Project everything, look up once per head, join, project back: as it is drawn in the textbooks."""
    answers = [
        lookup(
            project(head.query_matrix, query, head.query_offset),
            [project(head.key_matrix, key, head.key_offset) for key in keys],
            [project(head.value_matrix, value, head.value_offset) for value in values],
            score=score,
            temperature=temperature,
        )
        for head in heads
    ]
    joined = [number for answer in answers for number in answer.value]
    return project(output_matrix, joined, output_offset), answers
