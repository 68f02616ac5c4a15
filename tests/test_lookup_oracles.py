"""The lookup against code that nobody here wrote: torch attention and gradients, scikit-learn's kernel methods."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KernelDensity, KNeighborsRegressor

from softkv.maths.blending import Labels, Numbers, Vectors
from softkv.maths.compatibility import additive, bilinear
from softkv.maths.heads import Heads
from softkv.maths.lookup import lookup

from .backends import exact
from .scales import scaled

SDPA = torch.nn.functional.scaled_dot_product_attention


def tensors(seed: int, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Random tensors."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("width", [1, 8, 64])
@pytest.mark.parametrize("value_width", [1, 64, 70])
@pytest.mark.parametrize(("scale", "dtype"), [(None, torch.float32), (0.3, torch.float32), (5.0, torch.float64)])
def test_full_lookups_equal_torch_attention(
    library: str, width: int, value_width: int, scale: float | None, dtype: torch.dtype
) -> None:
    """Any widths, any scale (one over the temperature), two batch axes; large logits in the type that can hold them."""
    q, k, v = tensors(0, (2, 3, 9, width), (2, 3, 40, width), (2, 3, 40, value_width), dtype=dtype)
    given = [x.numpy() if library == "numpy" else x for x in (q, k, v)]
    compatibility, temperature = ("scaled_dot", 1.0) if scale is None else ("dot", 1 / scale)
    found = lookup(given[0], given[1], Vectors(given[2]), compatibility=compatibility, temperature=temperature)
    assert exact(found.value) == pytest.approx(exact(SDPA(q, k, v, scale=scale)), abs=1e-5)
    logits = q.double() @ k.double().mT * (scale or width**-0.5)
    assert exact(found.log_mass) == pytest.approx(exact(logits.logsumexp(-1)), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("rows", [9, 5, 30])
def test_causal_lookups_equal_torch_attention(library: str, rows: int) -> None:
    """There may be as many queries as rows, more, or fewer."""
    q, k, v = tensors(1, (2, 9, 8), (2, rows, 8), (2, rows, 4))
    given = [x.numpy() if library == "numpy" else x for x in (q, k, v)]
    found = lookup(given[0], given[1], Vectors(given[2]), causal=True)
    assert exact(found.value) == pytest.approx(exact(SDPA(q, k, v, is_causal=True)), abs=1e-5)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("shape", [(9, 40), (2, 9, 40), (1, 1, 40)])
def test_masked_and_biased_lookups_equal_torch_attention(library: str, shape: tuple[int, ...]) -> None:
    """Boolean masks, and added scores with -inf, broadcast over the batch."""
    q, k, v = tensors(2, (2, 9, 8), (2, 40, 8), (2, 40, 4))
    (noise,) = tensors(3, shape)
    given = [x.numpy() if library == "numpy" else x for x in (q, k, v, noise)]
    found = lookup(given[0], given[1], Vectors(given[2]), mask=given[3] > -0.5)
    assert exact(found.value) == pytest.approx(exact(SDPA(q, k, v, attn_mask=noise > -0.5)), abs=1e-5)
    added = torch.where(noise > -0.5, noise, -math.inf)
    bias = added.numpy() if library == "numpy" else added
    found = lookup(given[0], given[1], Vectors(given[2]), bias=bias)
    wanted = SDPA(q, k, v, attn_mask=added.broadcast_to(2, 9, 40) if added.ndim == 3 else added)
    scaled = lookup(given[0], given[1], Vectors(given[2]), bias=bias * 3.0, temperature=3.0)
    assert exact(found.value) == pytest.approx(exact(wanted), abs=1e-5)
    assert exact(scaled.value) == pytest.approx(exact(SDPA(q, k, v, scale=8**-0.5 / 3, attn_mask=added)), abs=1e-5)


def test_gaussian_lookups_equal_a_nearest_neighbour_regressor() -> None:
    """scikit-learn's regressor over all neighbours, with Gaussian weights, is the Nadaraya-Watson estimate."""
    generator = np.random.default_rng(4)
    keys, values, queries = (generator.standard_normal(shape) for shape in ((80, 3), (80, 2), (10, 3)))
    for bandwidth in (0.3, 1.0, 4.0):
        regressor = KNeighborsRegressor(n_neighbors=80, weights=lambda d, w=bandwidth: np.exp(-(d**2) / (2 * w**2)))
        expected = regressor.fit(keys, values).predict(queries)
        found = lookup(queries, keys, Vectors(values), compatibility="gaussian", temperature=bandwidth**2)
        assert found.value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("bandwidth", [0.2, 1.0, 3.0])
def test_log_mass_of_the_gaussian_is_a_kernel_density(bandwidth: float) -> None:
    """With its norm added, the log mass is scikit-learn's log density; row weights enter as a bias."""
    generator = np.random.default_rng(5)
    keys, queries, weights = generator.standard_normal((60, 4)), generator.standard_normal((7, 4)), generator.random(60)
    density = KernelDensity(bandwidth=bandwidth, rtol=1e-12).fit(keys, sample_weight=weights)
    norm = math.log(weights.sum()) + 2 * math.log(2 * math.pi * bandwidth**2)
    temperature = bandwidth**2
    found = lookup(
        queries,
        keys,
        Vectors(keys),
        compatibility="gaussian",
        temperature=temperature,
        bias=temperature * np.log(weights),
    )
    assert found.log_mass - norm == pytest.approx(density.score_samples(queries), abs=1e-9)


GRADED = [
    ("dot", {}),
    ("scaled_dot", {}),
    ("cosine", {}),
    ("gaussian", {}),
    ("laplace", {}),
    ("student", {}),
    ("dot", {"k": 3}),
    ("scaled_dot", {"mask": torch.arange(8) % 3 != 1}),
    ("gaussian", {"causal": True}),
    ("gaussian", {"bias": torch.linspace(-1, 1, 8, dtype=torch.float64)}),
]


@pytest.mark.parametrize(("name", "options"), GRADED)
@pytest.mark.parametrize("per_query", [False, True])
def test_gradients_are_those_of_finite_differences(name: str, options: dict[str, Any], per_query: bool) -> None:
    """Value, log mass, effective number and weights have them by queries, keys, values and temperature."""
    q, k, v = tensors(6, (4, 3), (8, 3), (8, 2), dtype=torch.float64)
    temperature = torch.linspace(0.5, 2, 4, dtype=torch.float64) if per_query else torch.tensor(0.7).double()

    def ask(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = lookup(given[0], given[1], Vectors(given[2]), compatibility=name, temperature=given[3], **options)
        return found.value, found.log_mass, found.effective, found.weights[..., :1], found.scores[..., :1]

    assert torch.autograd.gradcheck(ask, [x.requires_grad_() for x in (q, k, v, temperature)])


def test_gradients_flow_through_matrices_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bilinear and additive compatibilities, numbers with their spread, and merged blocks have them."""
    scaled(monkeypatch, rows=3)
    q, k, v, w, a, b, d = tensors(7, (3, 2), (8, 4), (8, 1), (2, 4), (5, 2), (5, 4), (5,), dtype=torch.float64)

    def ask(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, w, a, b, d = given
        found = [lookup(q, k, Numbers(v), compatibility=c) for c in (bilinear(w), additive(a, b, d))]
        return tuple(x for one in found for x in (one.value, one.spread, one.log_mass))

    assert torch.autograd.gradcheck(ask, [x.requires_grad_() for x in (q, k, v, w, a, b, d)])


def test_gradients_flow_through_labels() -> None:
    """The distribution over labels has gradients by queries and keys."""
    q, k = tensors(8, (3, 2), (9, 2), dtype=torch.float64)
    held = Labels(torch.arange(9) % 4, 4)
    assert torch.autograd.gradcheck(lambda q, k: lookup(q, k, held).value, [q.requires_grad_(), k.requires_grad_()])


@pytest.mark.parametrize("k", [None, 4])
def test_gradients_flow_through_all_projections(k: int | None) -> None:
    """Each of the eight arrays of the heads has the gradient of finite differences, and so have the inputs."""
    shapes = ((2, 3, 4), (2, 3, 5), (2, 3, 6), (4, 6), (2, 3), (2, 3), (2, 3), (4,))
    arrays = tensors(9, (3, 4), (7, 5), (7, 6), *shapes, dtype=torch.float64)

    def ask(
        q: torch.Tensor, keys: torch.Tensor, v: torch.Tensor, *projections: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        found = lookup(q, keys, Vectors(v), heads=Heads(*projections), k=k)
        assert found.head_weights is not None
        return found.value, found.log_mass, found.weights[..., :1], found.scores[..., :1]

    assert torch.autograd.gradcheck(ask, [x.requires_grad_() for x in arrays])


def test_what_is_asked_with_is_not_written_into() -> None:
    """Inputs are the same after a lookup, with and without gradients."""
    for wanted in (False, True):
        q, k, v = (x.requires_grad_(wanted) for x in tensors(10, (3, 4), (20, 4), (20, 2)))
        before = [x.detach().clone() for x in (q, k, v)]
        for name in ("dot", "gaussian", "cosine", "laplace"):
            lookup(
                q, k, Vectors(v), compatibility=name, temperature=1e-3, bias=torch.zeros(20), mask=torch.ones(20) > 0
            )
        assert all(torch.equal(x, old) for x, old in zip((q, k, v), before, strict=True))
