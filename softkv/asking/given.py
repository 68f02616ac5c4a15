"""Check the types of what a lookup was given: texts or vectors, temperatures, ways to compare, positions.

Whether they suit the store is checked by the lookup.
"""

import math
import operator
from typing import Any

import numpy as np

from softkv.asking.profile import REAL
from softkv.asking.question import Compared
from softkv.errors import InputError, KindError, NotExpressible, ShapeError, TemperatureError
from softkv.maths.compatibility import Compatibility
from softkv.maths.library import refuse_masked
from softkv.ndarrays import AnyArray


def texts_of(query: Any) -> list[str] | None:
    """The query texts, or None if the queries are vectors."""
    if isinstance(query, str):
        return [query]
    if hasattr(query, "dtype") and not hasattr(query, "requires_grad"):  # an array, or a column of a table
        query = np.asarray(query)
        query = query.tolist() if query.dtype.kind in "UOT" and query.ndim == 1 else None
    if not isinstance(query, (list, tuple)) or not query:
        return None
    texts = sum(isinstance(one, str) for one in query)
    if 0 < texts < len(query):
        raise KindError("expected queries that are all texts or all vectors, got a mixture.")
    return list(query) if texts else None


def array_of(given: Any, what: str) -> AnyArray:
    """What was handed in, as an array; errors name it as `what`."""
    refuse_masked(given, what)
    try:
        return np.asarray(given)
    except ValueError as error:
        raise ShapeError(f"{what} are ragged: all must have the same width ({error})") from error
    except (TypeError, RuntimeError) as error:  # an array of another library that does not turn into one of NumPy's
        raise KindError(f"{what} cannot be read as an array ({error})") from error


def vectors_of(query: Any) -> AnyArray:
    """The query vector or the matrix of query vectors, as given."""
    array = array_of(query, "queries")
    if array.dtype.kind not in "fiu":
        raise KindError(f"expected a text, a vector, or many of either as the query, got {array.dtype}.")
    if array.ndim not in (1, 2):
        raise ShapeError(f"expected one vector or a matrix of them as the query, got shape {array.shape}.")
    return array


def require_one(one: bool) -> None:
    """Refuse several queries: `compare` takes one."""
    if not one:
        raise ShapeError("expected one text or one vector to compare, got several. Compare them one at a time.")


def temperatures_of(given: Any) -> Any:
    """A float, or an array with one for each query; the lookup checks that they are above 0."""
    array = array_of(given, "temperatures")
    if array.dtype.kind not in "fiu":
        raise TemperatureError(f"expected a temperature above 0, or one for each query, got {given!r}.")
    return array.astype(np.float64) if array.ndim else float(array)


def comparison_of(given: Any) -> Compared:
    """A way to compare, checked by its type; the lookup checks that the name is known."""
    if not isinstance(given, (str, Compatibility)) and not callable(given):
        raise NotExpressible(
            f"expected a compatibility by its name, a function of (queries, keys), or bilinear(W) or additive(...) of "
            f"softkv.maths.compatibility, got {type(given).__name__}."
        )
    known: Compared = given
    return known


def place_of(given: Any, name: str) -> int | None:
    """The number of an item in the order of the store."""
    if given is None:
        return None
    try:
        return operator.index(given)
    except TypeError as error:
        raise KindError(f"expected {name} to be a whole number, got {given!r}.") from error


def check_promise(tolerance: object, confidence: object, guarantee: object) -> None:
    """Refuse promises that cannot be kept. A scan keeps all the others."""
    if isinstance(tolerance, bool) or not isinstance(tolerance, REAL) or not 0 <= tolerance < math.inf:
        raise InputError(f"expected tolerance to be a number from 0 on, got {tolerance!r}.")
    if isinstance(confidence, bool) or not isinstance(confidence, REAL) or not 0 < confidence < 1:
        raise InputError(f"expected confidence to be a number between 0 and 1, got {confidence!r}. Try 0.95.")
    if guarantee not in (None, "bound"):
        raise InputError(f"expected guarantee to be None or 'bound', got {guarantee!r}.")
