"""The value alone, with gradients: scores, a softmax, an average, and nothing that would only be told; or the evidence.

A lookup of softkv/maths/lookup.py goes block by block, adds up in float64 and finds out much besides; with gradients,
torch would keep all of that. Where learning is what is wanted, this takes less than half of its time.

Does not choose rows (with k, the lookup does), and leaves it to the lookup to say what is wrong with a value that is
not finite.

Shapes: b queries, n rows, h heads, p value width, c labels; "..." is any leading axes.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from softkv.answer import Answers
from softkv.guard.guard import NONE, SURE
from softkv.maths.arrays import library_of, sharpened
from softkv.maths.blending import Labels, Vectors
from softkv.maths.compatibility import Compatibility, scorer_of
from softkv.maths.heads import Heads
from softkv.maths.inputs import Inputs, checked


def weighed(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    compatibility: Compatibility,
    temperature: Tensor,
    mask: Any,
    bias: Any,
    heads: Heads | None,
    labels: int | None,
) -> Tensor | None:
    """What (..., b, q) queries find: means of numbers (..., n) or of vectors (..., n, p), or shares of labels.

    None where a score is not finite.
    """
    alone = values.ndim < keys.ndim and labels is None
    held = Vectors(values[..., None] if alone else values) if labels is None else Labels(values, labels)
    inputs = checked(queries, keys, held, temperature=temperature, mask=mask, bias=bias, heads=heads)
    logits = _scores(inputs, compatibility)
    if not torch.isfinite(logits.detach().sum()) and not torch.isfinite(logits).all():
        return None
    weights = functional.softmax(_allowed(inputs, logits), -1)
    if labels is not None:
        shares: Tensor = library_of(weights).sums_by_code(values, weights, labels).to(weights.dtype)
        return shares
    means: Tensor = weights @ inputs.values.array.to(weights.dtype)
    if inputs.heads is not None:
        projected: Tensor = inputs.heads.project(means)
        return projected
    means = means.to(held.dtype)
    return means[..., 0] if alone else means


def evidence_of(found: Answers) -> Tensor:
    """The evidence of answers to (..., b) queries, as `Guard.evidence_of` has it for arrays of NumPy."""
    evidence: Tensor = found.log_mass - found.seen.to(found.log_mass).log()
    if found.labels is None:
        return evidence
    largest: Tensor = found.value.to(evidence).amax(-1).clamp(NONE, 1.0 - NONE)
    return evidence + SURE * (largest.log() - (-largest).log1p())


def _scores(inputs: Inputs, compatibility: Compatibility) -> Tensor:
    sharpness = inputs.sharpness(slice(None))
    if inputs.heads is None:
        scorer = compatibility.ask(inputs.queries, sharpness)
    else:
        scorer = scorer_of(sharpened(inputs.heads.rewrite(inputs.queries, compatibility)[0], sharpness))
    logits: Tensor = scorer(inputs.over_heads(inputs.keys).to(inputs.dtype), 0)
    return logits


def _allowed(inputs: Inputs, logits: Tensor) -> Tensor:
    """The logits with their bias, and -inf where a row is not seen."""
    if inputs.bias is not None:
        bias = inputs.over_heads(inputs.bias).to(logits.dtype)
        # Subtle: -inf must not meet the temperature, or its gradient would be NaN.
        never = bias == -torch.inf
        added = sharpened(bias.masked_fill(never, 0.0), inputs.sharpness(slice(None)))
        logits = (logits + added).masked_fill(never, -torch.inf)
    return logits if inputs.mask is None else logits.masked_fill(~inputs.over_heads(inputs.mask), -torch.inf)
