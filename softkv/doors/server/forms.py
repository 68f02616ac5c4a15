"""Forms of requests: the bodies of endpoints, made of the signatures of the methods that they call.

A form has the options of its method, with their names and defaults. Types are checked strictly; arguments that the
library converts to arrays are checked by the library.

Does not read bodies (endpoints.py).
"""

from collections.abc import Callable
from dataclasses import MISSING, fields
from inspect import Parameter, getdoc, signature
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, WithJsonSchema, create_model

from softkv.maths.heads import Heads

TEXT, NUMBER, TRUTH, NULL = ({"type": name} for name in ("string", "number", "boolean", "null"))


class RequestForm(BaseModel):
    """The body of a request: nothing but the fields of the form, and of their types without conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)


def listed(schema: dict[str, Any]) -> dict[str, Any]:
    """The type of a list of these."""
    return {"type": "array", "items": schema}


def either(*schemas: dict[str, Any]) -> Any:
    """The type of an argument that is one of these in JSON; a packed body may have arrays instead."""
    return Annotated[Any, WithJsonSchema({"anyOf": list(schemas)})]


VECTOR, TEXTS = listed(NUMBER), listed(TEXT)
QUERY, QUERIES = either(TEXT, VECTOR), either(TEXTS, listed(VECTOR))
_ARRAYS = either(VECTOR, listed(VECTOR), listed(listed(VECTOR)), NULL)
_PROJECTIONS: Any = {one.name: (_ARRAYS, ... if one.default is MISSING else None) for one in fields(Heads)}
_HEADS = create_model(
    "HeadsForm", __base__=RequestForm, __doc__="Learned projections, as Heads has them.", **_PROJECTIONS
)
OUTSIDE = either(TEXTS, listed(VECTOR), NULL)
ANSWERS = either(TEXTS, VECTOR, listed(VECTOR), NULL)
_LIBRARYS = {  # types that the library takes in more forms than can be sent
    "query": QUERY,
    "queries": QUERIES,
    "targets": either(TEXTS, VECTOR, listed(VECTOR)),
    "out_of_scope": OUTSIDE,
    "mask": either(listed(TRUTH), listed(listed(TRUTH)), NULL),
    "temperature": either(NUMBER, VECTOR, NULL),
    "compatibility": str | None,
    "heads": _HEADS | None,
}


def form_of(method: Callable[..., Any], *but: str, **others: Any) -> type[RequestForm]:
    """The form of a method, without its progress and some of its parameters; `others` are (type, default) by name."""
    hints, (_, *parameters) = get_type_hints(method), signature(method).parameters.values()
    found = {}
    for one in parameters:
        known = one.name in _LIBRARYS and (hints[one.name] is Any or one.name in ("compatibility", "heads"))
        default = ... if one.default is Parameter.empty else one.default
        found[one.name] = (_LIBRARYS[one.name] if known else hints[one.name], default)
    kept: Any = {name: one for name, one in (found | others).items() if name not in ("progress", *but)}
    name = f"{method.__name__.title().replace('_', '')}RequestForm"
    form: type[RequestForm] = create_model(
        name, __base__=RequestForm, __doc__=str(getdoc(method)).partition("\n")[0], **kept
    )
    return form
