"""Names for the types of NumPy arrays, for annotations in all rooms; how many dimensions there are is told beside them.

Arrays of any library (NumPy or torch) are `Array` of softkv.maths.library. Computes nothing.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

AnyArray: TypeAlias = npt.NDArray[Any]
Matrix: TypeAlias = npt.NDArray[np.float32]  # as keys and vectors are stored
Vector: TypeAlias = npt.NDArray[np.float32]  # one row of a matrix
Floats: TypeAlias = npt.NDArray[np.float64]  # what is summed or estimated
Reals: TypeAlias = npt.NDArray[np.floating]  # float32 or float64
Counts: TypeAlias = npt.NDArray[np.int64]
Rows: TypeAlias = npt.NDArray[np.int64]  # numbers of rows
Codes: TypeAlias = npt.NDArray[Any]  # of labels: whole numbers of any type
Flags: TypeAlias = npt.NDArray[np.bool_]
