"""Endpoints that ask: lookup, nearest, compare, self_attention, evaluate.

A lookup of one query waits in the lane of its store, and may be asked together with others of the same options; what
carries many queries, a mask or heads is asked by itself, beside the lane. An answer that would be too large is refused
before it is computed.

Does not know how a question is answered, and words no error that the library has words for.
"""

import json
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import WithJsonSchema
from starlette.responses import Response

from softkv.answer import Answer, Answers
from softkv.asking.given import array_of, texts_of
from softkv.comparison import Comparison
from softkv.database.evaluating import Evaluation
from softkv.doors.server.documents import AnswerDocument, ComparisonDocument
from softkv.doors.server.endpoints import LARGEST_REPLY, Call, Endpoint, Form, too_large
from softkv.errors import InputError, KindError, ShapeError
from softkv.maths.heads import Heads

OF_ROW, OF_NUMBER, OF_LABEL, PACKED = 200, 20, 40, 8  # bytes of a contributor, a number, a label; of a packed number

_NUMBERS: dict[str, Any] = {"type": "array", "items": {"type": "number"}}
_TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
_TRUTHS: dict[str, Any] = {"type": "array", "items": {"type": "boolean"}}
_NULL: dict[str, Any] = {"type": "null"}


def _either(*schemas: dict[str, Any]) -> Any:
    """What JSON may hold where the library itself looks at what it is given, perhaps an array."""
    return WithJsonSchema({"anyOf": list(schemas)})


def _many(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


Query: TypeAlias = Annotated[Any, _either({"type": "string"}, _NUMBERS)]
Queries: TypeAlias = Annotated[Any, _either(_TEXTS, _many(_NUMBERS))]
Mask: TypeAlias = Annotated[Any, _either(_TRUTHS, _many(_TRUTHS), _NULL)]
Temperatures: TypeAlias = Annotated[Any, _either({"type": "number"}, _NUMBERS, _NULL)]
Projections: TypeAlias = Annotated[Any, _either(*(_many(one) for one in (_NUMBERS, _many(_NUMBERS))), _NULL, _NUMBERS)]


class HeadsForm(Form):
    """Learned projections of queries, keys and values."""

    w_q: Projections
    w_k: Projections
    w_v: Projections = None
    w_o: Projections = None
    b_q: Projections = None
    b_k: Projections = None
    b_v: Projections = None
    b_o: Projections = None

    def heads(self) -> Heads:
        """The heads that are meant."""
        given = {name: getattr(self, name) for name in type(self).model_fields}
        return Heads(**{name: None if one is None else _numbers(one, name) for name, one in given.items()})


class NearestForm(Form):
    """What is looked up: one `query` or many `queries`."""

    query: Query = None
    queries: Queries = None
    temperature: Temperatures = None
    compatibility: str | None = None
    tolerance: float | None = None
    where: dict[str, Any] | None = None
    mask: Mask = None
    projection: bool | None = None


class LookupForm(NearestForm):
    """What is looked up, softly."""

    k: int | None = None
    confidence: float | None = None
    guarantee: str | None = None
    heads: HeadsForm | None = None
    show: int | None = None


class CompareForm(Form):
    """One query, to be looked up in every way."""

    query: Query
    k: int | None = None
    temperature: float | None = None
    compatibility: str | None = None
    where: dict[str, Any] | None = None
    projection: bool | None = None
    show: int | None = None
    tolerance: float | None = None
    confidence: float | None = None


class SelfAttentionForm(Form):
    """How every item is to ask all items."""

    causal: bool = False
    temperature: Temperatures = None
    compatibility: str | None = None
    k: int | None = None
    mask: Mask = None
    heads: HeadsForm | None = None
    show: int | None = None


class EvaluateForm(Form):
    """Queries, and what they should have been answered."""

    queries: Queries
    targets: Annotated[Any, _either(_TEXTS, _NUMBERS, _many(_NUMBERS))]
    out_of_scope: Annotated[Any, _either(_TEXTS, _many(_NUMBERS), _NULL)] = None
    k: int | None = None
    temperature: float | None = None
    compatibility: str | None = None
    projection: bool | None = None
    tolerance: float | None = None
    temperatures: list[float] | None = None
    seed: int | None = None


async def _looked_up(call: Call, method: str) -> Any:
    """The answer to one query, perhaps found together with others, or those to many."""
    form, options = call.form, _options(call.form, "query", "queries")
    if (form.query is None) == (form.queries is None):
        raise InputError("expected either query, for one, or queries, for many.")
    beside = form.query is None or {"mask", "heads"} & options.keys() or np.ndim(form.temperature)
    if beside:
        return await call.beside(partial(_asked, method, options, form.query, form.queries))
    query = _one(form.query)
    read = call.served.name if call.snapshot is None else (call.snapshot, call.token)
    kinds = None if isinstance(query, str) else query.shape
    told = json.dumps(options, sort_keys=True)  # 1 and true are equal in Python, and not in JSON
    same: Hashable = call if call.alone else (method, read, kinds, told)
    return await call.served.lane.ask(
        same, partial(_together, method, options), (call, query), call.seconds, call.request.is_disconnected
    )


def _together(method: str, options: dict[str, Any], questions: Sequence[tuple[Call, Any]]) -> list[Response]:
    """The responses to queries of the same options, all of one commit."""
    first, queries = questions[0][0], [query for _, query in questions]
    with first.reading() as reader:
        _require_room(first, reader, len(queries), options)
        ask = getattr(reader, method)
        if len(queries) == 1:
            found: Sequence[Answer] = [ask(queries[0], **options)]
        else:
            found = list(_kept(ask(queries if isinstance(queries[0], str) else np.stack(queries), **options)))
    responses = []
    for (call, _), answer in zip(questions, found, strict=True):
        call.commit = first.commit
        responses.append(call.respond(_hidden(call, answer)))
    return responses


def _asked(method: str, options: dict[str, Any], one: Any, many: Any, call: Call) -> Any:
    """The answers to many queries, or to one with options of its own."""
    query = _one(one) if many is None else _batch(many)
    options = {name: given.heads() if name == "heads" else given for name, given in options.items()}
    with call.reading() as reader:
        _require_room(call, reader, 1 if many is None else len(query), options)
        found = getattr(reader, method)(query, **options)
        return _hidden(call, found if isinstance(found, Answer) else _kept(found))


def _compared(call: Call) -> Comparison:
    options = _options(call.form, "query")
    with call.reading() as reader:
        _require_room(call, reader, 3, options)
        found = reader.compare(_one(call.form.query), **options)
    answers = {name: _hidden(call, getattr(found, name)) for name in ("hard", "top_k", "soft")}
    return replace(found, **answers)


def _attended(call: Call) -> Answers:
    options = _options(call.form)
    if "heads" in options:
        options["heads"] = options["heads"].heads()
    with call.reading() as reader:
        _require_room(call, reader, len(reader), options)
        return _hidden(call, _kept(reader.self_attention(**options)))


def _evaluated(call: Call) -> Evaluation:
    options, form = _options(call.form, "queries", "targets", "out_of_scope"), call.form
    strangers = None if form.out_of_scope is None else _batch(form.out_of_scope)
    with call.reading() as reader:
        found = reader.evaluate(
            _batch(form.queries), form.targets, out_of_scope=strangers, progress=call.require_time, **options
        )
    hidden = call.served.without_paths
    ways = tuple(replace(one, scanned=one.scanned and hidden(one.scanned)) for one in found.ways)
    return replace(found, ways=ways)


def _options(form: Form, *but: str) -> dict[str, Any]:
    """The options that were given; null leaves an option to the library, as leaving it out does."""
    given = {name: getattr(form, name) for name in form.model_fields_set if name not in but}
    return {name: one for name, one in given.items() if one is not None}


def _one(given: Any) -> Any:
    """One query: a text, or a vector as an array."""
    if isinstance(given, str):
        return given
    array = _numbers(given, "query")
    if array.ndim != 1:
        raise ShapeError(f"expected one text or one vector as query, got shape {array.shape}. Send many as queries.")
    return array


def _batch(given: Any) -> Any:
    """Many queries: texts, or vectors as an array."""
    if not isinstance(given, str) and texts_of(given) is not None:
        return given
    array = np.empty(0) if isinstance(given, str) else _numbers(given, "queries")
    if isinstance(given, str) or (array.ndim != 2 and array.shape != (0,)):
        raise ShapeError("expected queries as a list of texts or a matrix. Send one text or vector as query.")
    return array


def _numbers(given: Any, name: str) -> Any:
    """Numbers as an array; lists of JSON may hold other things, which NumPy would make numbers of."""
    if isinstance(given, list):
        rows = given if given and isinstance(given[0], list) else [given]
        if any(bool in set(map(type, row)) for row in rows if isinstance(row, list)):
            raise KindError(f"expected numbers in {name}, got true or false.")
    array = array_of(given, name)
    if array.dtype.kind not in "fiu":
        raise KindError(f"expected numbers in {name}, got {array.dtype}.")
    return array


def _kept(answers: Answers) -> Answers:
    """Answers that need no store: all their contributors are looked up at once."""
    of, given = answers.__reduce__()
    made: Answers = of(*given)  # type: ignore[operator, misc]
    return made


def _hidden(call: Call, found: Any) -> Any:
    """Answers whose reasons name no directory of the server."""
    hidden, reason = call.served.without_paths, found.reason
    if reason is None:
        return found
    return replace(found, reason=hidden(reason) if isinstance(reason, str) else tuple(map(hidden, reason)))


def _require_room(call: Call, reader: Any, count: int, options: dict[str, Any]) -> None:
    """Refuse answers that would be too large to send."""
    view = reader._asked_view()
    heads, layout, items = options.get("heads"), view.layout, len(view.snapshot)
    shown = min(max(options.get("show", 10), 0), items)
    labels = 0 if view.labels is None else len(view.labels)
    width = (heads.output_width(labels or layout.value_width) if heads else 0) or labels or layout.value_width
    numbers = count * (width + shown * (3 + (len(heads) if heads else 0)))
    described = min(count * shown, items) if call.packs else count * shown
    vector = 0 if layout.kind.narrow or layout.kind.embedded else layout.value_width
    each = PACKED if call.packs else OF_LABEL if labels else OF_NUMBER
    size = numbers * each + described * (OF_ROW + vector * (PACKED if call.packs else OF_NUMBER))
    if size > LARGEST_REPLY:
        raise too_large(size)


_ANSWERS: Any = AnswerDocument | list[AnswerDocument]
ENDPOINTS = (
    Endpoint("POST", "/v1/{store}/lookup", partial(_looked_up, method="lookup"), LookupForm, _ANSWERS),
    Endpoint("POST", "/v1/{store}/nearest", partial(_looked_up, method="nearest"), NearestForm, _ANSWERS),
    Endpoint("POST", "/v1/{store}/compare", _compared, CompareForm, ComparisonDocument),
    Endpoint("POST", "/v1/{store}/self_attention", _attended, SelfAttentionForm, list[AnswerDocument]),
    Endpoint("POST", "/v1/{store}/evaluate", _evaluated, EvaluateForm, Evaluation),
)
