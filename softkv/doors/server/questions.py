"""Endpoints of lookups: lookup, nearest, compare, self_attention, evaluate.

A lookup of one query waits in the lane of its store, and may be asked together with others of the same options; one
with many queries, a mask or heads is asked by itself, beside the lane. An answer that would be too large is refused
before it is computed.

Does not know how a question is answered, and leaves errors to the library.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from starlette.responses import Response

from softkv.answer import Answer, Answers
from softkv.asking.asker import Asker
from softkv.asking.given import array_of, texts_of
from softkv.comparison import Comparison
from softkv.database.evaluating import Evaluation, evaluate
from softkv.database.reader import Reader
from softkv.doors.server.documents import AnswerDocument, ComparisonDocument
from softkv.doors.server.endpoints import ALONE, LARGEST_REPLY, ON_LOOP, Call, Endpoint, too_large
from softkv.doors.server.forms import QUERIES, QUERY, form_of
from softkv.errors import InputError, KindError, ShapeError
from softkv.maths.heads import Heads

MOST_SHOWN = 100  # queries of a page
OF_ROW, OF_NUMBER, PACKED = 200, 30, 8  # bytes of a contributor and of a number, in JSON and packed, about


async def _looked_up(method: str, call: Call) -> Any:
    """The answer to one query, possibly asked together with others, or the answers to many."""
    form, options = call.form, call.options("query", "queries")
    if (form.query is None) == (form.queries is None):
        raise InputError("expected either query, for one, or queries, for many.")
    scalars = all(one is None or isinstance(one, str | int | float | dict) for one in options.values())
    if form.query is None or not scalars or call.held > ON_LOOP:
        return await call.beside(partial(_asked, method))
    query = _one(form.query)
    read = (call.snapshot, call.snapshot and call.token)
    told = repr(sorted(options.items()))  # 1 and True are equal, but not the same option
    same: Hashable = call if call.alone else (method, read, getattr(query, "shape", str), told)
    ask = partial(_together, method, options)
    return await call.served.lane.ask(same, ask, (call, query), call.seconds, call.request.is_disconnected)


def _together(method: str, options: dict[str, Any], questions: Sequence[tuple[Call, Any]]) -> list[Response]:
    """The responses to queries of the same options, all of one commit."""
    first, queries = questions[0][0], [query for _, query in questions]
    with first.reading() as reader:
        _require_room(first, reader, len(queries), options)
        ask = getattr(reader, method)
        if len(queries) == 1:
            found = [_hidden(first, ask(queries[0], **options))]
        else:
            found = list(_kept(first, ask(queries if isinstance(queries[0], str) else np.stack(queries), **options)))
    for call, _ in questions:
        call.commit = first.commit
    return [call.respond(answer) for (call, _), answer in zip(questions, found, strict=True)]


def _asked(method: str, call: Call) -> Any:
    """The answers to many queries, or to one with options that are arrays."""
    form, options = call.form, call.options("query", "queries")
    query = many(form.queries) if form.query is None else _one(form.query)
    options |= _heads(options)
    with call.reading() as reader:
        _require_room(call, reader, len(query) if form.query is None else 1, options)
        found = getattr(reader, method)(query, **options)
        return _hidden(call, found) if isinstance(found, Answer) else _kept(call, found)


def _compared(call: Call) -> Comparison:
    options = call.options("query")
    with call.reading() as reader:
        _require_room(call, reader, 3, options)
        found = reader.compare(_one(call.form.query), **options)
    return replace(found, **{name: _hidden(call, getattr(found, name)) for name in ("hard", "top_k", "soft")})


def _attended(call: Call) -> Answers:
    options = call.options()
    options |= _heads(options)
    with call.reading() as reader:
        _require_room(call, reader, len(reader), options)
        return _kept(call, reader.self_attention(**options))


def _scene(call: Call) -> dict[str, Any]:
    """The scene of a page, without directories of the server."""
    options = call.options()
    options |= _heads(options)
    if not isinstance(options.get("queries", ""), str):
        options["queries"] = many(options["queries"])
    count = 1 if isinstance(options.get("queries"), str) else len(options.get("queries", ()))
    if count > MOST_SHOWN:
        raise InputError(f"expected at most {MOST_SHOWN} queries for a page, got {count:,}. Ask others with lookup.")
    with call.reading() as reader:
        _require_room(call, reader, count, {"heads": options.get("heads"), "show": 1})
        found = reader.scene(**options, progress=call.require_time)
    for query in found["queries"]:
        query["facts"] = call.served.without_paths(query["facts"])
    return found


def _evaluated(call: Call) -> Evaluation:
    options = call.options("queries", "targets")
    if options.get("out_of_scope") is not None:
        options["out_of_scope"] = many(options["out_of_scope"])
    with call.reading() as reader:
        found = reader.evaluate(many(call.form.queries), call.form.targets, progress=call.require_time, **options)
    hidden = call.served.without_paths
    return replace(found, ways=tuple(replace(one, scanned=one.scanned and hidden(one.scanned)) for one in found.ways))


def _heads(options: Mapping[str, Any]) -> dict[str, Heads]:
    """The heads of a form, if it has any."""
    given = options.get("heads")
    if given is None:
        return {}
    needed = [name for name, field in type(given).model_fields.items() if field.is_required()]
    return {"heads": Heads(**{name: _numbers(one, name) for name, one in given if one is not None or name in needed})}


def _one(given: Any) -> Any:
    """One query: a text, or a vector as an array."""
    if isinstance(given, str):
        return given
    array = _numbers(given, "query")
    if array.ndim != 1 or not len(array):
        raise ShapeError(f"expected one text or one vector as query, got shape {array.shape}. Send many as queries.")
    return array


def many(given: Any) -> Any:
    """Many queries: texts, or vectors as an array."""
    if not isinstance(given, str) and texts_of(given) is not None:
        return given
    array = np.empty((), np.str_) if isinstance(given, str) else _numbers(given, "queries")
    if array.ndim != 2 and array.shape != (0,):
        raise ShapeError("expected queries as a list of texts or a matrix. Send one text or vector as query.")
    return array


def _numbers(given: Any, name: str) -> Any:
    """Numbers as an array; refuses true and false in a list, which NumPy would turn into numbers."""
    array = array_of(given, name)
    if array.dtype.kind not in "fiu" or (isinstance(given, list) and _holds_truths(given)):
        raise KindError(f"expected numbers in {name}, got {array.dtype if array.dtype.kind not in 'fiu' else 'bool'}.")
    return array


def _holds_truths(given: list[Any]) -> bool:
    kinds = set(map(type, given))
    return bool in kinds or (list in kinds and any(map(_holds_truths, given)))


def _kept(call: Call, answers: Answers) -> Answers:
    """Answers that no longer need the store, since all contributors are read at once."""
    made: Any = answers.__reduce__()
    kept: Answers = _hidden(call, made[0](*made[1]))
    return kept


def _hidden(call: Call, found: Any) -> Any:
    """Answers without directories of the server in reasons and guard."""
    hidden, reason = call.served.without_paths, found.reason
    found = replace(found, guard=call.served.shown(found.guard))
    if not reason:
        return found
    return replace(found, reason=hidden(reason) if isinstance(reason, str) else tuple(map(hidden, reason)))


def _require_room(call: Call, reader: Asker, count: int, options: Mapping[str, Any]) -> None:
    """Refuse answers that would be too large to send."""
    view, heads = reader._asked_view(), options.get("heads") or ()
    items, kind, width = len(view.snapshot), view.layout.kind, view.layout.value_width
    shown = min(max(options.get("show", 10), 0), items)
    labels = len(view.labels or ())
    wide = heads.output_width(labels or width) if heads else labels or width
    described = min(count * shown, items) if call.packs else count * shown
    numbers = count * (wide + shown * (3 + len(heads))) + described * (0 if kind.narrow or kind.embedded else width)
    size = numbers * (PACKED if call.packs else OF_NUMBER) + described * OF_ROW
    if size > LARGEST_REPLY:
        raise too_large(size, call.endpoint.form)


_OPTIONAL = {"query": (QUERY | None, None), "queries": (QUERIES | None, None)}
_ALONE = {"Softkv-Alone": {"enum": ALONE}}
_MANY: Any = list[AnswerDocument]
_ANSWERS: Any = AnswerDocument | _MANY
ENDPOINTS = (
    *(
        Endpoint(
            "POST", f"/v1/{{store}}/{name}", partial(_looked_up, name), form, _ANSWERS, crew="long", headers=_ALONE
        )
        for name, form in ((one.__name__, form_of(one, **_OPTIONAL)) for one in (Asker.lookup, Asker.nearest))
    ),
    Endpoint("POST", "/v1/{store}/compare", _compared, form_of(Asker.compare), ComparisonDocument),
    Endpoint("POST", "/v1/{store}/self_attention", _attended, form_of(Asker.self_attention), _MANY, crew="long"),
    Endpoint("POST", "/v1/{store}/scene", _scene, form_of(Reader.scene), dict[str, Any], crew="long"),
    Endpoint("POST", "/v1/{store}/evaluate", _evaluated, form_of(evaluate), Evaluation, crew="long"),
)
