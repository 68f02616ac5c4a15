"""Combine the lists of several stores as if they were those of one, along the axes of the first.

Each store has found axes, a slope and a profile of its own. The covariances of its lists are turned into the axes of
the first. That leaves out no more than a single store does anyway, so estimates are as good, but they have no bounds.
The slope is the mean of the slopes of all stores, weighted by their rows.

Does not read rows, nor find the lists of a store (moments.py).

Shapes: l lists, d key width, r leading axes, s labels with a slope, p value width.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from softkv.maths.shares import Shares
from softkv.maths.summaries import Lists
from softkv.maths.symmetric import packed, unpacked
from softkv.ndarrays import Codes, Floats, Reals

TOGETHER = 4096  # lists that are turned at once
EACH = ("counts", "means", "spreads", "outside", "value_radii", "scatter", "noise")  # what has one entry per list


@np.errstate(over="ignore", invalid="ignore")  # false statistics become NaN or inf, and are rejected
def turned(lists: Lists, turn: Floats, shift: Floats, axes: Reals) -> Lists:
    """The lists of a store, in float64, once its keys are multiplied with `turn`, (d, d), and moved by `shift`, (d,).

    The result is along `axes`.
    """
    lead, whole_turn = lists.leading, axes.T @ turn @ lists.axes
    grown, own = whole_turn.T @ whole_turn, whole_turn[:lead]
    others = (own[:, lead:] * lists.profile) @ own[:, lead:].T
    spreads, sums = np.empty(lists.spreads.shape), np.empty((2, len(lists.counts)))
    for start in range(0, len(lists.counts), TOGETHER):
        some = slice(start, start + TOGETHER)
        inner = unpacked(lists.spreads[some], lead)
        sums[0, some] = np.einsum("lij,ij->l", inner, grown[:lead, :lead])
        inner = own[:, :lead] @ inner @ own[:, :lead].T + lists.outside[some, None, None] * others
        spreads[some], sums[1, some] = packed(inner), np.einsum("lii->l", inner)
    whole = sums[0] + lists.outside * (np.diag(grown)[lead:] @ lists.profile)
    means, slope = lists.means @ turn.T + shift, lists.slope @ lists.axes.T @ np.linalg.inv(turn) @ axes
    outside = np.maximum(whole - sums[1], 0.0)
    return replace(lists, means=means, axes=axes, spreads=spreads, outside=outside, slope=slope)


@np.errstate(over="ignore", invalid="ignore")
def abreast(parts: Sequence[Lists], codes: Sequence[Codes | None], labels: int = 0) -> Lists:
    """The lists of all stores along shared axes, those of the first store before those of the second.

    Where values are labels, `labels` counts them all, and `codes` gives for each store the shared codes of its labels.
    """
    found = {name: np.concatenate([getattr(one, name) for one in parts]) for name in EACH}
    weights = [max(float(one.counts.sum()), 1.0) for one in parts]
    if labels:
        values, slope = _of_labels(parts, codes, weights, labels)
    else:
        values = np.concatenate([one.vectors for one in parts])
        slope = np.average([one.slope for one in parts], axis=0, weights=weights)
    endless = np.full((len(found["counts"]), 2), np.inf)  # bounds computed from these say nothing
    return Lists(
        **found,
        axes=parts[0].axes,
        profile=parts[0].profile,
        widest=endless[:, 0],
        radii=endless,
        values=values,
        slope=slope,
        slope_gaps=endless,
    )


def _of_labels(
    parts: Sequence[Lists], codes: Sequence[Codes | None], weights: Sequence[float], labels: int
) -> tuple[Reals | Shares, Floats]:
    """The shares of labels in all lists, by shared codes, and the slope of labels that have one in any store."""
    entries, sloped, first = [], [], 0
    for one, own in zip(parts, codes, strict=True):
        shares = one.values
        assert isinstance(shares, Shares)
        assert own is not None
        entries.append((shares.owners + first, own[shares.codes], shares.tallies))
        sloped.append(own[shares.sloped])
        first += shares.shape[0]
    places = np.unique(np.concatenate(sloped))
    slope, rows = np.zeros((len(places), len(parts[0].axes))), np.zeros((len(places), 1))
    for some, one, weight in zip(sloped, parts, weights, strict=True):
        at = np.searchsorted(places, some)
        slope[at] += weight * one.slope
        rows[at] += weight
    owners, all_codes, tallies = (np.concatenate(x) for x in zip(*entries, strict=True))
    found = Shares.of(owners, all_codes, tallies, lists=first, labels=labels)
    return replace(found, sloped=places), slope / np.maximum(rows, 1.0)
