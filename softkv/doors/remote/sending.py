"""Methods with the arguments of the local ones, which are sent to a server to be carried out there.

Arguments that cannot be sent, such as functions, are refused before anything is sent.

Does not know which methods there are (reading.py, handle.py).
"""

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, cast

import numpy as np

from softkv.asking.given import array_of, comparison_of, temperatures_of, texts_of, vectors_of
from softkv.doors.shapes import hints_of
from softkv.errors import KindError, NotRemote
from softkv.maths.heads import Heads

Method = TypeVar("Method", bound=Callable[..., Any])


def sent(local: Method) -> Method:
    """A method like the local one, whose arguments go to the server by the `_sent` of its handle."""
    takes = signature(local)

    @wraps(local)
    def send(self: Any, *given: Any, **named: Any) -> Any:
        (_, *names), arguments = takes.parameters, takes.bind(self, *given, **named).arguments
        document: dict[str, Any] = {}
        for name in names:
            if arguments.get(name, takes.parameters[name].default) is not takes.parameters[name].default:
                document |= _SPECIAL.get(name, _plain)(name, arguments[name])
        return self._sent(local.__name__, hints_of(local)["return"], document)

    return cast(Method, send)


def sendable(what: str, given: Any) -> Any:
    """An argument, converted to lists, dicts, texts, numbers and arrays of NumPy."""
    if given is None or isinstance(given, (str, bool, int, float, np.generic)):
        return given
    if isinstance(given, Mapping):
        return {name: sendable(what, one) for name, one in given.items()}
    if isinstance(given, (list, tuple)):
        return [sendable(what, one) for one in given]
    if callable(given) or not hasattr(given, "__array__"):
        raise NotRemote(
            f"{what} is of type {type(given).__name__}, which cannot be sent to a server. Open the store by its path, "
            "on the machine where it is, to use such."
        )
    array = array_of(given, what)
    if array.dtype.kind in "fiub" and array.ndim:
        return array.astype(np.float64) if array.dtype.itemsize > 8 else array
    return sendable(what, array.tolist())  # texts, single numbers, or what else a column may hold


def _plain(name: str, given: Any) -> dict[str, Any]:
    return {name: sendable(name, given)}


def _query(_name: str, given: Any) -> dict[str, Any]:
    """One query or many, of texts or of vectors, told apart as the local method does."""
    texts = texts_of(given)
    if texts is not None:
        return {"query": given} if isinstance(given, str) else {"queries": texts}
    array = vectors_of(given)
    return {"query" if array.ndim == 1 and len(array) else "queries": sendable("the query", array)}


def _compatibility(name: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, (str, list, tuple)):
        comparison_of(given)  # raises the usual error if it is no way to compare at all
        raise NotRemote(
            "expected compatibility by its name, since a server cannot be sent a function. Open the store by its path, "
            "on the machine where it is, to compare by one."
        )
    return {name: sendable(name, given)}


def _temperature(name: str, given: Any) -> dict[str, Any]:
    return {name: given if given is None else temperatures_of(given)}


def _heads(name: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, Heads):
        raise KindError(f"expected heads to be softkv.Heads, got {type(given).__name__}. Stack the projections in it.")
    return {name: {one: np.asarray(array) for one, array in given.arrays().items()}}


_SPECIAL: dict[str, Callable[[str, Any], dict[str, Any]]] = {
    "query": _query,
    "compatibility": _compatibility,
    "heads": _heads,
    "temperature": _temperature,
    "progress": lambda name, given: {name: given},
}
