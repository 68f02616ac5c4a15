"""ONNX's own node tests of its operator Attention, opsets 23 to 25, by `soft_lookup` and by `Heads`.

What the operator does around a lookup (shapes, past keys, which rows a mask, a window or a length leaves) is done here
in the words of its specification; the lookup is ours. A query that sees no row is 0 there and an error here, so it is
asked for in vain, and left out. The expansions of the operator into others (`_expanded`) test the same figures.
"""

import math
from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.case.node.attention  # which makes the cases, and those of no other operator
import pytest
import torch

from softkv import Heads, soft_lookup
from softkv.errors import AllMasked

MADE = onnx.backend.test.case.node._NodeTestCases
CASES = {one.name: one for one in MADE if one.model.graph.node[0].op_type == "Attention"}
INPUTS = ("q", "k", "v", "mask", "past_key", "past_value", "lengths")
TOLERANCE = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}  # of ONNX's own arithmetic: ours is float32 at least


def asked(name: str) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """The attributes, inputs and outputs of a case; numbers as float32, which holds those of all shorter types."""
    (node,), ((inputs, outputs),) = CASES[name].model.graph.node, CASES[name].data_sets
    attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    left, given = iter(inputs), {}
    for called, one in zip(INPUTS, node.input, strict=False):
        given[called] = next(left) if one else None
    attributes["dtype"] = str(given["q"].dtype)
    wide = {key: one if one is None or one.dtype.kind in "bi" else one.astype(np.float32) for key, one in given.items()}
    return attributes, dict.fromkeys(INPUTS) | wide, [np.asarray(one, np.float32) for one in outputs]


def in_heads(x: Any, count: int) -> Any:
    """(batch, rows, heads x width) as (batch, heads, rows, width)."""
    return x.reshape(*x.shape[:2], count, -1).swapaxes(1, 2)


def packed(x: Any) -> Any:
    """(batch, heads, rows, width) as (batch, rows, heads x width)."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def seen_and_added(attributes: dict[str, Any], given: dict[str, Any], shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Which rows each query sees, and what is added to their logits: (batch, heads, queries, rows)."""
    queries, rows = shape[-2:]
    seen, added = np.ones(shape, bool), np.zeros(shape, np.float32)
    past = 0 if given["past_key"] is None else given["past_key"].shape[2]
    first = np.full((shape[0], 1, 1, 1), past)
    if given["lengths"] is not None:
        lengths = given["lengths"].reshape(-1, 1, 1, 1)
        seen &= np.arange(rows) < lengths
        first = lengths - queries
    ahead = np.arange(rows) - (np.arange(queries)[:, None] + first)
    if attributes.get("is_causal"):
        seen &= ahead <= 0
    left, right = attributes.get("left_window_size", -1), attributes.get("right_window_size", -1)
    seen &= (left < 0) | (ahead >= -left)
    seen &= (right < 0) | (ahead <= right)
    mask = given["mask"]
    if mask is not None:
        wide = mask.shape[-1]
        seen[..., wide:] = False
        if mask.dtype == bool:
            seen[..., :wide] &= mask
        else:
            added[..., :wide] += mask
    return seen & (added > -1e30), np.where(added > -1e30, added, 0)


def compared(attributes: dict[str, Any], width: int) -> tuple[Any, float]:
    """The compatibility that a case asks for, and its temperature."""
    scale, cap = attributes.get("scale", 1 / math.sqrt(width)), attributes.get("softcap", 0.0)
    if not cap:
        return ("dot", 1 / scale) if "scale" in attributes else ("scaled_dot", 1.0)

    def capped(queries: Any, keys: Any) -> Any:
        scores = queries @ keys.swapaxes(-1, -2) * (scale / cap)
        return cap * (scores.tanh() if hasattr(scores, "tanh") else np.tanh(scores))

    return capped, 1.0


@pytest.mark.parametrize("library", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("name", CASES)
def test_the_operator_is_a_lookup(name: str, library: Any) -> None:
    """Its output, the keys and values that are present, and the scores or weights where it tells them."""
    attributes, given, outputs = asked(name)
    flat = given["q"].ndim == 3
    queries = in_heads(given["q"], attributes["q_num_heads"]) if flat else given["q"]
    keys, values = (in_heads(given[one], attributes["kv_num_heads"]) if flat else given[one] for one in "kv")
    if given["past_key"] is not None:
        keys, values = (np.concatenate([given[f"past_{one}"], x], 2) for one, x in (("key", keys), ("value", values)))
        assert np.array_equal(outputs[1], keys)
        assert np.array_equal(outputs[2], values)
    keys, values = (np.repeat(x, queries.shape[1] // x.shape[1], 1) for x in (keys, values))
    seen, added = seen_and_added(attributes, given, (*queries.shape[:-1], keys.shape[2]))
    compatibility, temperature = compared(attributes, queries.shape[-1])
    options = {"compatibility": compatibility, "temperature": temperature, "show": keys.shape[2]}
    empty = ~seen.any(-1)  # (batch, heads, queries)

    def looked_up(mask: Any) -> Any:
        given = [library(np.ascontiguousarray(one)) for one in (queries, keys, values, mask, added * temperature)]
        return soft_lookup(*given[:3], mask=given[3], bias=given[4], **options)

    if empty.any():
        with pytest.raises(AllMasked):
            looked_up(seen)
    answers = looked_up(seen | empty[..., None])
    found = np.where(empty[..., None], 0, np.asarray(answers.value))
    near = {"rtol": TOLERANCE[attributes["dtype"]], "atol": TOLERANCE[attributes["dtype"]]}
    np.testing.assert_allclose(packed(found) if flat else found, outputs[0], **near)
    if len(CASES[name].model.graph.node[0].output) == 4:
        np.testing.assert_allclose(told(attributes, answers, temperature, seen, added), outputs[-1], **near)


def told(attributes: dict[str, Any], answers: Any, temperature: float, seen: Any, added: Any) -> Any:
    """The scores or weights of all rows, as an output mode has them."""
    mode = attributes.get("qk_matmul_output_mode", 0)
    if mode == 3:
        return np.where(seen, np.asarray(answers.attention()), 0)
    rows, scores = np.asarray(answers.rows), np.asarray(answers.scores) / temperature
    found = np.full((*seen.shape[:-1], seen.shape[-1] + 1), -np.inf, np.float32)
    np.put_along_axis(found, rows, scores, -1)  # rows that are not seen are called -1, and go behind the others
    found = found[..., :-1]
    return np.where(seen, found + added, -np.inf) if mode == 2 else found


def by_heads(name: str) -> bool:
    """Whether a case has its heads side by side in one row, and asks what heads can be asked.

    Not a softcap, since heads rewrite queries, for which scores have to be products; nor the scores of each head.
    """
    node = CASES[name].model.graph.node[0]
    names = {one.name for one in node.attribute}
    return "q_num_heads" in names and "softcap" not in names and len(node.output) < 4


@pytest.mark.parametrize("name", list(filter(by_heads, CASES)))
def test_heads_side_by_side_are_heads(name: str) -> None:
    """`Heads` that see a slice each give the operator's rows; several share a slice of the keys where it says so."""
    attributes, given, outputs = asked(name)
    count, groups = attributes["q_num_heads"], attributes["kv_num_heads"]
    widths = {one: given[one].shape[-1] // (count if one == "q" else groups) for one in "qkv"}
    owner = {"q": np.arange(count), "k": np.arange(count) * groups // count, "v": np.arange(count) * groups // count}
    slices = {
        one: np.eye(given[one].shape[-1], dtype=np.float32).reshape(-1, widths[one], given[one].shape[-1])[owner[one]]
        for one in "qkv"
    }
    heads = Heads(slices["q"], slices["k"], slices["v"])
    keys, values = given["k"], given["v"]
    if given["past_key"] is not None:
        keys, values = (np.concatenate([packed(given[f"past_{one}"]), given[one[0]]], 1) for one in ("key", "value"))
    seen, added = seen_and_added(attributes, given, (keys.shape[0], 1, given["q"].shape[1], keys.shape[1]))
    compatibility, temperature = compared(attributes, widths["q"])
    options = {"compatibility": compatibility, "temperature": temperature, "heads": heads}
    found = soft_lookup(given["q"], keys, values, mask=seen[:, 0], bias=added[:, 0] * temperature, **options)
    tolerance = TOLERANCE[attributes["dtype"]]
    np.testing.assert_allclose(found.value, outputs[0], rtol=tolerance, atol=tolerance)


def test_all_cases_are_run() -> None:
    """What the page about doors says of them: how many there are, and which do not run by heads."""
    versions = Counter(one.model.opset_import[0].version for one in CASES.values())
    side_by_side = [name for name in CASES if asked(name)[1]["q"].ndim == 3]
    assert (len(CASES), dict(versions)) == (93, {23: 69, 24: 13, 25: 11})
    assert (len(side_by_side), len(list(filter(by_heads, side_by_side)))) == (25, 18)
