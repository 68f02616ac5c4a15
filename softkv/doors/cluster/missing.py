"""Answers of some shards as estimates of what all would answer.

Does not find out which shards answer (asking.py).

Shapes: m shards, b queries, p value width, d key width.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from softkv.answer import Answers
from softkv.asking.question import Question
from softkv.doors.cluster.hosting import Header
from softkv.doors.cluster.merging import Sides, no_surer
from softkv.maths.quantiles import quantile
from softkv.ndarrays import Floats

FEWEST = 8  # shards by which others are estimated
ROUNDED = 1e-5  # of a logit, at most
BY_LAST = "of shards that do not answer, what they held when they last did tells how far it may be off"


def widened(found: Answers, parts: Sequence[Answers], missing: float, confidence: float) -> Answers:
    """Answers of some shards as estimates of those of all; the others, with a share `missing` of the keys, are silent.

    Items are shared out by hash, so shards are like each other: how far an answer moves when each is left out shows how
    far it may be from that of all (the jackknife, for a sample without replacement). If few shards make most of the
    difference, only these count as degrees of freedom (Satterthwaite): counting all of them, errors stated for 95% held
    in 85 to 100%. With fewer than FEWEST shards no error is stated. It is measured, or calibrated if the answers are.
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
    return replace(
        found,
        **silent,
        log_mass=found.log_mass - np.log1p(-missing),
        error=found.error + _left_out(values, missing, confidence),
        error_kind=no_surer(found.error_kind, "measured"),
        log_mass_error=_stated(found) + _left_out(masses, missing, confidence),
    )


def bounded(found: Answers, question: Question, missing: float, last: Sequence[Header]) -> Answers:
    """Answers of some shards with a bound on how far those of all may be, by the last known figures of the others.

    No item of the others scored higher than their longest key can, and no value lay beyond their reach: that limits
    their mass and the distance of their mean. Mostly the bound is wide. Where the answers are estimates, what is stated
    of all holds no more often than what they state.
    """
    there = [one for one in last if one.reach is not None]
    added = _log_of_sum([np.log(one.count) + _highest(question, one) for one in there], len(found))
    sure = found.log_mass - _stated(found)
    with np.errstate(invalid="ignore"):
        share = np.nan_to_num(1.0 / (1.0 + np.exp(np.minimum(sure - added, 700.0))), nan=1.0)
    value = np.asarray(found.value, np.float64).reshape(len(found), -1)
    if found.labels is None:
        apart = [np.linalg.norm(value - one.reach.middle, axis=1) + one.reach.radius for one in there if one.reach]
    else:  # all their items may have a label that no item of the others has
        apart = [np.sqrt(np.square(value).sum(1) + 1.0)] * len(there)
    farther = np.logaddexp(0.0, added - sure) + found.log_mass - sure
    return replace(
        found,
        out_of_reach=np.full(len(found), missing),
        effective_error=None,
        spread_error=None,
        error=found.error + share * np.max([np.zeros(len(found)), *apart], axis=0),
        error_kind=no_surer(found.error_kind, "bound"),
        log_mass_error=np.nan_to_num(farther, nan=np.inf),
        reason=BY_LAST,
    )


def _stated(found: Answers) -> Floats:
    """The error of the log mass that answers state, (b,) or one for all; 0 where they state none."""
    stated: Floats = np.nan_to_num(
        np.asarray(0.0 if found.log_mass_error is None else found.log_mass_error, np.float64)
    )
    return stated


def _highest(question: Question, one: Header) -> Floats:
    """The largest logit that an item can have, (b,); infinite for functions of the user."""
    queries = np.asarray(question.queries, np.float64)
    lengths = np.linalg.norm(queries, axis=-1) * one.longest_key
    known = {"dot": lengths, "scaled_dot": lengths / np.sqrt(queries.shape[-1]), "cosine": np.ones(len(queries))}
    known |= dict.fromkeys(("gaussian", "laplace", "student", "uniform"), np.zeros(len(queries)))
    named = question.compatibility if isinstance(question.compatibility, str) else ""
    highest: Floats = (
        known.get(named, np.full(len(queries), np.inf)) * (1.0 + ROUNDED) / np.asarray(question.temperature)
    )
    return highest


def _log_of_sum(logits: Sequence[Floats], count: int) -> Floats:
    found: Floats = np.logaddexp.reduce([np.full(count, -np.inf), *logits], axis=0)
    return found


def _left_out(found: Floats, missing: float, confidence: float) -> Floats:
    """How far the answer of all may be, from the answers without each of m shards, (m, b, p) -> (b,)."""
    count = len(found)
    squares = np.square(found - found.mean(0)).sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        degrees = np.square(squares.sum(0)) / np.square(squares).sum(0) - 1.0
    factors = np.array([quantile(1.0, confidence, max(1.0, one)) for one in np.nan_to_num(degrees, nan=1.0).tolist()])
    error: Floats = np.sqrt(factors * missing * (count - 1) / count * squares.sum(0))
    return np.where(np.isnan(error), np.inf, error)
