"""The libraries and floating types that every test of the maths runs through, and how well each must agree.

Imports nothing from softkv: what is compared with must not depend on what is tested.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch


@dataclass(frozen=True)
class Backend:
    """A library with a floating type of its inputs."""

    library: str
    dtype: str

    def array(self, given: Any) -> Any:
        """The numbers as this library's array of this type."""
        if self.library == "numpy":
            return np.asarray(given).astype(self.dtype)
        return torch.as_tensor(np.asarray(given)).to(getattr(torch, self.dtype))

    def rounded(self, given: Any) -> list[Any]:
        """The numbers as they are after rounding to this type, for the reference."""
        return exact(self.array(given)).tolist()  # type: ignore[no-any-return]

    @property
    def epsilon(self) -> float:
        """The rounding of the type that is computed with: at least float32."""
        return float(np.finfo(np.float64 if self.dtype == "float64" else np.float32).eps)

    def tolerance(self, logits: Sequence[float]) -> float:
        """How far a result may be off, relative to its scale: 8 roundings of the largest logit."""
        largest = max((abs(logit) for logit in logits if logit > -np.inf), default=1.0)
        return 8 * self.epsilon * max(1.0, largest)


def exact(x: Any) -> Any:
    """Any array as NumPy float64."""
    return x.detach().double().numpy() if isinstance(x, torch.Tensor) else np.asarray(x, dtype=np.float64)


BACKENDS = [
    Backend("numpy", "float64"),
    Backend("numpy", "float32"),
    Backend("numpy", "float16"),
    Backend("torch", "float64"),
    Backend("torch", "float32"),
    Backend("torch", "float16"),
    Backend("torch", "bfloat16"),
]
every_backend = pytest.mark.parametrize("backend", BACKENDS, ids=lambda one: f"{one.library}-{one.dtype}")
