"""Answers of some shards as estimates of what all would answer.

Does not find out which shards answer (asking.py).

Shapes: m shards, b queries, p value width.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from softkv.answer import Answers
from softkv.doors.cluster.merging import Floats, Sides
from softkv.maths.quantiles import quantile

FEWEST = 8  # shards by which others are estimated


def widened(found: Answers, parts: Sequence[Answers], missing: float, confidence: float) -> Answers:
    """Answers of some shards as estimates of those of all, where others with a share `missing` of all keys are silent.

    Items are shared out by hash, so shards are like each other: how far an answer moves when each is left out tells how
    far it may be from that of all (the jackknife, for a sample without replacement). Where few shards make most of the
    difference, these count as the only ones that are known (Satterthwaite): with all of them as degrees of freedom, 85
    to 100% of statements held that are to hold in 95%. Of fewer than FEWEST shards nothing is stated.
    """
    silent: dict[str, Any] = {
        "out_of_reach": np.full(len(found), missing),
        "effective_error": None,
        "spread_error": None,
    }
    if len(parts) < FEWEST or found.error is None:
        return replace(found, **silent, error=None, error_kind="unknown", log_mass_error=None)
    sides = Sides(tuple(parts), found.labels)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = (sides.value - sides.shares[..., None] * sides.values) / (1.0 - sides.shares)[..., None]
        masses = (found.log_mass + np.log1p(-sides.shares))[..., None]
    stated = np.asarray(found.log_mass_error if found.log_mass_error is not None else 0.0)
    return replace(
        found,
        **silent,
        log_mass=found.log_mass - np.log1p(-missing),
        error=found.error + _left_out(values, missing, confidence),
        error_kind="measured",
        log_mass_error=np.nan_to_num(stated) + _left_out(masses, missing, confidence),
    )


def _left_out(found: Floats, missing: float, confidence: float) -> Floats:
    """How far what is found without each of m shards, (m, b, p), may be from what all say, (b,)."""
    count = len(found)
    squares = np.square(found - found.mean(0)).sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        degrees = np.square(squares.sum(0)) / np.square(squares).sum(0) - 1.0
    factors = np.array([quantile(1.0, confidence, max(1.0, one)) for one in np.nan_to_num(degrees, nan=1.0).tolist()])
    error: Floats = np.sqrt(factors * missing * (count - 1) / count * squares.sum(0))
    return np.where(np.isnan(error), np.inf, error)
