"""Compute only the value of answers, or only the evidence, with gradients: scores, a softmax, an average.

A lookup of softkv/maths/lookup.py works block by block, sums in float64 and computes much else; torch would keep all of
that for gradients. For learning, the code here takes less than half the time.

Does not choose the k best rows (the lookup does), and leaves the error for a value that is not finite to the lookup.

Shapes: b queries, n rows, h heads, p value width, c labels; "..." is any leading axes.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from softkv.answer import Answers
from softkv.guard.guard import NONE, SURE
from softkv.maths.arrays import library_of, sharpened
from softkv.maths.blending import Labels, Vectors
from softkv.maths.compatibility import Compatibility, scorer_of
from softkv.maths.distances import Scorer
from softkv.maths.heads import Heads
from softkv.maths.inputs import Inputs, checked

BLOCK = 1 << 12  # rows that are converted and scored at a time, so that they stay in the cache of the processor


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
    in_blocks: bool,
) -> Tensor | None:
    """What (..., b, q) queries find: means of numbers (..., n) or of vectors (..., n, p), or shares of labels.

    None, or something that is not finite, where a score is not. `in_blocks`, which takes no bias and no labels, keeps
    no weights for the gradients, but works them out once more.
    """
    alone = values.ndim < keys.ndim and labels is None
    held = Vectors(values[..., None] if alone else values) if labels is None else Labels(values, labels)
    inputs = checked(queries, keys, held, temperature=temperature, mask=mask, bias=bias, heads=heads)
    if in_blocks:
        return _finished(_blended(inputs, compatibility), inputs, alone=alone)
    make, given = _scoring(inputs, compatibility)
    weighed_by = (inputs.mask, _added(inputs)) if _cancels(inputs, compatibility) else ()
    logits: Tensor = make(*given)(inputs.over_heads(inputs.keys).to(inputs.dtype), 0, *weighed_by)
    if not torch.isfinite(logits.detach().sum()) and not torch.isfinite(logits).all():
        return None
    weights = functional.softmax(_allowed(inputs, logits), -1)
    if labels is not None:
        shares: Tensor = library_of(weights).sums_by_code(values, weights, labels).to(weights.dtype)
        return shares
    return _finished(weights @ inputs.values.array.to(weights.dtype), inputs, alone=alone)


def may_be_in_blocks(values: Tensor, bias: Any, labels: int | None) -> bool:
    """Whether rows can be blended block by block, so that gradients need little memory beyond the answer."""
    return bias is None and labels is None and not values.requires_grad


def _finished(means: Tensor, inputs: Inputs, *, alone: bool) -> Tensor:
    """Blended values in the form of an answer."""
    if inputs.heads is not None:
        projected: Tensor = inputs.heads.project(means)
        return projected
    means = means.to(inputs.values.dtype)
    return means[..., 0] if alone else means


def evidence_of(found: Answers) -> Tensor:
    """The evidence of answers to queries (..., b), as `Guard.evidence_of` computes it for NumPy arrays."""
    evidence: Tensor = found.log_mass - found.seen.to(found.log_mass).log()
    if found.labels is None:
        return evidence
    largest: Tensor = found.value.to(evidence).amax(-1).clamp(NONE, 1.0 - NONE)
    return evidence + SURE * (largest.log() - (-largest).log1p())


def _scoring(inputs: Inputs, compatibility: Compatibility) -> tuple[Callable[..., Scorer], tuple[Tensor, ...]]:
    """A function that makes the scorer from the tensors that may learn, and these tensors."""
    sharpness = torch.as_tensor(inputs.sharpness(slice(None)))
    if inputs.heads is None:
        return compatibility.ask, (inputs.queries, sharpness)
    return scorer_of, (sharpened(inputs.heads.rewrite(inputs.queries, compatibility)[0], sharpness),)


def _blended(inputs: Inputs, compatibility: Compatibility) -> Tensor:
    make, given = _scoring(inputs, compatibility)
    mask = None if inputs.mask is None else inputs.over_heads(inputs.mask)
    keys, values = inputs.over_heads(inputs.keys), inputs.values.array
    cancels = _cancels(inputs, compatibility)
    found: Tensor = _InBlocks.apply(make, cancels, keys, values, mask, *given)  # type: ignore[no-untyped-call]
    return found


class _InBlocks(torch.autograd.Function):
    """Means of rows that are scored block by block, once for the answer and once for its gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        make: Callable[..., Scorer],
        cancels: bool,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        *given: Tensor,
    ) -> Tensor:
        """The means (..., b, p), NaN where a score is not finite or no row is seen."""
        scorer, dtype = make(*given), given[0].dtype
        top, mass, total = (torch.tensor(x, dtype=dtype, device=keys.device) for x in (-torch.inf, 0.0, 0.0))
        for some in _blocks(keys, values, given[0]):
            logits = scorer(keys[..., some, :].to(dtype), some.start, *_seen(mask if cancels else None, some))
            mass = mass + 0.0 * logits.detach().sum()  # NaN from here on, where one of them is not finite
            if mask is not None:
                logits = logits.masked_fill(~mask[..., some], -torch.inf)
            best = torch.maximum(top, logits.amax(-1, keepdim=True))
            base = best.masked_fill(best == -torch.inf, 0.0)
            weights, kept = (logits - base).exp(), (top - base).exp()
            mass = mass * kept + weights.sum(-1, keepdim=True)
            total = total * kept + weights @ values[..., some, :].to(dtype)
            top = best
        found: Tensor = total / mass
        ctx.make, ctx.cancels, ctx.masked = make, cancels, mask is not None
        ctx.save_for_backward(keys, values, found, top + mass.log(), *(() if mask is None else (mask,)), *given)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients by the tensors from which scores were computed."""
        keys, values, found, log_mass, *rest = ctx.saved_tensors
        mask, given = (rest[0], rest[1:]) if ctx.masked else (None, rest)
        leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in given]
        with torch.enable_grad():
            scorer = ctx.make(*leaves)
        expected = (gradient * found).sum(-1, keepdim=True)
        for some in _blocks(keys, values, given[0]):
            with torch.enable_grad():
                seen = _seen(mask if ctx.cancels else None, some)
                logits = scorer(keys[..., some, :].to(given[0].dtype), some.start, *seen)
            weights = (logits.detach() - log_mass).exp()
            if mask is not None:
                weights = weights.masked_fill(~mask[..., some], 0.0)
            slopes = weights * (gradient @ values[..., some, :].to(gradient.dtype).mT - expected)
            torch.autograd.backward(logits, slopes, retain_graph=True, inputs=leaves)
        return None, None, None, None, None, *(x.grad for x in leaves)


def _cancels(inputs: Inputs, compatibility: Compatibility) -> bool:
    """Whether scores have to know what decides which rows are the best (distances.py)."""
    return compatibility.cancels and inputs.heads is None


def _seen(mask: Tensor | None, some: slice) -> tuple[Tensor, ...]:
    return () if mask is None else (mask[..., some],)


def _added(inputs: Inputs) -> Tensor | None:
    return None if inputs.bias is None else sharpened(inputs.bias.detach(), inputs.sharpness(slice(None)))


def _blocks(keys: Tensor, values: Tensor, queries: Tensor) -> list[slice]:
    """Runs of rows that are scored at a time: a fixed number, but on a GPU as many as it can hold."""
    leading = math.prod(np.broadcast_shapes(queries.shape[:-2], keys.shape[:-2]))
    widest = max(1, leading * max(queries.shape[-2], keys.shape[-1], values.shape[-1]))
    step = max(BLOCK, library_of(keys).at_once(keys, BLOCK) // widest)
    return [slice(start, start + step) for start in range(0, keys.shape[-2], step)]


def _allowed(inputs: Inputs, logits: Tensor) -> Tensor:
    """The logits with their bias, and -inf where a row is not seen."""
    if inputs.bias is not None:
        bias = inputs.over_heads(inputs.bias).to(logits.dtype)
        # Subtle: -inf must not meet the temperature, or its gradient would be NaN.
        never = bias == -torch.inf
        added = sharpened(bias.masked_fill(never, 0.0), inputs.sharpness(slice(None)))
        logits = (logits + added).masked_fill(never, -torch.inf)
    return logits if inputs.mask is None else logits.masked_fill(~inputs.over_heads(inputs.mask), -torch.inf)
