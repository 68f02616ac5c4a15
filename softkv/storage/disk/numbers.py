"""Which numbers can be in the rows of a store: a right checksum does not prove that softkv wrote them.

Whatever is added is checked, so NaN, infinity, or the code of a missing label can only come from another program. They
are refused where they are first read, before they reach an answer.

Does not read files.
"""

from collections.abc import Callable

import numpy as np

from softkv.ndarrays import AnyArray
from softkv.storage.batch import LARGEST_NUMBER
from softkv.storage.layout import RowShape

Believable = Callable[[AnyArray], bool]


def believable(shape: RowShape, labels: Callable[[], int]) -> Believable:
    """Whether numbers can be from rows of this shape; `labels` tells how many labels there are."""
    if shape.role == "norms":  # infinite for keys near the end of float32
        return lambda numbers: bool((numbers >= 0).all())
    if shape.dtype == "<i4":
        return lambda codes: not codes.size or (int(codes.min()) >= 0 and int(codes.max()) < labels())
    if shape.dtype == "<f8":
        return lambda numbers: bool((np.abs(numbers) <= LARGEST_NUMBER).all())
    return lambda numbers: bool(np.isfinite(numbers).all())
