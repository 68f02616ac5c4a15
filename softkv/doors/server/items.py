"""Endpoints of items: read by key, page by page and as columns; add, set values, delete; export.

Large results come in pages: a page ends early rather than being longer than 16 MiB, and says where the next one begins.
A write with the name of a batch is carried out once, however often it is sent.

Does not know how a store reads or writes, and leaves errors to the library.
"""

import asyncio
import json
import os
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from inspect import signature
from types import NoneType
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from softkv.database.carrying import export_into
from softkv.database.columns import StoreColumns
from softkv.database.handle import SoftKV, StoreView
from softkv.database.stamping import stamp
from softkv.doors import wire
from softkv.doors.server.endpoints import Call, Endpoint
from softkv.doors.server.forms import RequestForm, form_of
from softkv.errors import Busy, InputError, KeyMissing, KeyTextError
from softkv.files.exports import disk
from softkv.files.exports.formats import WRITTEN
from softkv.storage import Added, Item
from softkv.storage.catalog.batches import mismatch

PAGE = 16 << 20  # bytes of a page in JSON, about
MOST, FEW, MANY = 1000, 16, 4096  # items of a page at most; items read together: at first, and at most
SEARCHED = 1 << 16  # items that are searched for a text, for one page
ROWS = 1 << 16  # of columns at once
NUMBER = 25  # bytes of a number in JSON at most, with its comma
PIECE = 1 << 18  # bytes of a file that are sent at once

FORMATS = [suffix[1:] for suffix in WRITTEN]
BINARY = "application/octet-stream"
MISSING: Any = object()


class GetForm(RequestForm):
    """Keys to read: the values of their items, or all about them."""

    keys: list[str]
    default: str | float | None = None
    whole: bool = False


class PopForm(RequestForm):
    """The key of an item, or none for the last one, and the name of the batch."""

    key: str | None = None
    batch: str | None = None


class ClearForm(RequestForm):
    """The name of the batch in which all items are deleted."""

    batch: str | None = None


class SelectForm(RequestForm):
    """A page of the items that match a filter, in their order; of these, those whose key or text contains `find`."""

    where: dict[str, Any] | None = None
    find: str | None = None
    start: Annotated[int, Field(ge=0)] = 0
    stop: Annotated[int, Field(ge=0)] | None = None
    limit: Annotated[int, Field(ge=1, le=MOST)] = MOST
    whole: bool = False


class ColumnsForm(RequestForm):
    """Some of all items as arrays, in the order in which they lie."""

    start: Annotated[int, Field(ge=0)] = 0
    rows: Annotated[int, Field(ge=0, le=ROWS)] = ROWS
    whole: bool = False


def _got(call: Call) -> dict[str, Any]:
    """Values by key, or items; an error for a key that is missing, unless there is a default."""
    form = call.form
    with call.reading() as view:
        found, stop = _page(call, lambda start, stop: _read(view, form, form.keys[start:stop]), 0, len(form.keys))
    missing = [one is MISSING for one in found]
    found = [form.default if one is MISSING else one for one in found]
    told = {"items": [_told(call, one) for one in found]} if form.whole else {"values": _stacked(found)}
    return told | {"missing": missing, "next": _next(stop, len(form.keys))}


def _read(view: StoreView, form: GetForm, keys: list[str]) -> list[Any]:
    """The value or the item of each key, or MISSING in its place."""
    needed = "default" not in form.model_fields_set
    if not form.whole:
        found = view.get_many(keys, MISSING)
        for key in [key for key, one in zip(keys, found, strict=True) if needed and one is MISSING][:1]:
            view[key]  # raises the error
        return found
    found = []
    for key in keys:
        try:
            found.append(view.item(key))
        except (KeyMissing, KeyTextError):
            if needed:
                raise
            found.append(MISSING)
    return found


def _popped(call: Call) -> Any:
    """Delete an item and return its key and value; recorded under the name of the batch, to be returned again."""
    db, key = call.served.handle, call.form.key
    with db._changing:
        named = stamp(call.form.batch, "pop", [key])
        before = None if named is None else db._store.written(named.id)
        if named is not None and before is not None:
            if before.digest != named.digest:
                raise mismatch(named.id, before.commit)
            return wire.unpacked(np.array(before.result, "<i8").tobytes())
        item = db._last() if key is None else db.item(key)
        body = wire.packed({"key": item.name, "value": item.value})
        numbers = np.frombuffer(body.rjust(-(-len(body) // 8) * 8), "<i8").tolist()  # blanks go before JSON alone
        db._delete(item.name, stamp=None if named is None else replace(named, tells=lambda _: numbers))
        return wire.unpacked(body)


def _selected(call: Call) -> dict[str, Any]:
    form = call.form
    end = form.start + (form.limit if form.find is None else SEARCHED)
    end = end if form.stop is None else min(end, form.stop)
    with call.reading() as view:
        items, stop = _page(
            call, lambda start, stop: list(view.select(form.where, start=start, stop=stop)), form.start, end
        )
    return {"items": [_told(call, one) for one in items], "next": _next(stop, form.stop)}


def _columns(call: Call) -> dict[str, Any]:
    """Some rows as arrays, or as items; with the first of them, what the store is."""
    start, rows = call.form.start, call.form.rows
    with call.reading() as view:
        columns = view.columns()
        if call.form.whole:
            items, stop = _page(call, columns.items, start, min(start + rows, len(columns)))
            return {"items": [_told(call, one) for one in items], "next": _next(stop, len(columns))}
        room = PAGE // ((columns.key_width + columns.value_width) * (8 if call.packs else NUMBER))
        vectors, values = columns.block(start, start + min(rows, max(1, room)))
        stop = start + len(vectors)
        found = {"vectors": vectors, "values": values, "next": _next(stop, len(columns))}
        return found | (_facts(call, columns) if start == 0 else {})


def _facts(call: Call, columns: StoreColumns) -> dict[str, Any]:
    """Facts about a store, for models that load all of it; its metric as the bytes of its file."""
    names = ("store", "commit", "kind", "labels", "compatibility", "key_width", "value_width", "temperature")
    learned, (guard, stale) = columns.learned, columns.guard
    facts = {name: getattr(columns, name) for name in names} | {"count": len(columns)}
    facts["guard"] = call.served.shown(guard), stale
    packed = None if learned is None else b"".join(learned.without_numbers().encoded())
    return facts | {"learned": None if packed is None else np.frombuffer(packed, np.uint8)}


def _page(call: Call, read: Callable[[int, int], Sequence[Any]], start: int, end: int) -> tuple[list[Any], int | None]:
    """The items between two places, or as many as fit; and where the page ends, None if no item is left."""
    found: list[Any] = []
    place, room, portion, default = start, PAGE, FEW, getattr(call.form, "default", None)
    find, limit = getattr(call.form, "find", None), getattr(call.form, "limit", end)
    while place < end:
        call.require_time()
        some = read(place, min(place + portion, end))
        for at, one in enumerate(some, place):
            if find is not None and find.casefold() not in f"{one.name}\n{one.text or ''}".casefold():
                continue
            room -= _weight(default if one is MISSING else one, whole=getattr(call.form, "whole", True))
            if (room < 0 and found) or len(found) == limit:
                return found, at
            found.append(one)
        if len(some) < min(portion, end - place):
            return found, None
        place, portion = place + len(some), min(2 * portion, MANY)
    return found, end


def _next(place: int | None, last: int | None) -> int | None:
    """Where the page after one that ended at `place` begins; None if there is none before `last`."""
    return None if place is None or (last is not None and place >= last) else place


def _weight(one: Any, *, whole: bool) -> int:
    """The bytes of a value or an item in JSON, at most."""
    if not isinstance(one, Item):
        return len(json.dumps(one)) if isinstance(one, str) else NUMBER * np.size(one)
    words = len(json.dumps([one.name, one.payload, one.text if whole else None]))
    return words + NUMBER * (one.vector.size if whole else 0) + _weight(one.value, whole=whole) + 100


def _told(call: Call, one: Any) -> Any:
    """An item as it is sent: as an object in a packed answer, else as a document."""
    if not isinstance(one, Item) or (call.packs and call.form.whole):
        return one
    document = {"key": one.name, "value": one.value, "payload": one.payload}
    return document | ({"text": one.text, "vector": one.vector} if call.form.whole else {})


def _stacked(values: list[Any]) -> Any:
    """Values as a list; vectors, if none is missing, as one matrix."""
    return np.array(values) if values and all(isinstance(one, np.ndarray) for one in values) else values


class _File(Response):
    """Send an unnamed temporary file, piece by piece; it is gone once it is sent, or the client has left."""

    def __init__(self, descriptor: int, headers: dict[str, str], close: Callable[[], object]) -> None:
        super().__init__(headers=headers, media_type=BINARY)
        self._descriptor, self._close = descriptor, weakref.finalize(self, close)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await StreamingResponse(self._pieces(), headers=self.headers)(scope, receive, send)
        finally:
            self._close()

    async def _pieces(self) -> AsyncIterator[bytes]:
        place = 0
        # Subtle: not `read`: in a thread that outlives this call it might move the position of another file that has
        # got the same descriptor.
        while piece := await asyncio.to_thread(os.pread, self._descriptor, PIECE, place):
            yield piece
            place += len(piece)


def _export(call: Call) -> Response:
    """A whole store as a response; only so many files take room at a time."""
    wanted, exports = call.request.query_params.get("format", FORMATS[0]), call.served.exports
    if wanted not in FORMATS:
        raise InputError(f"format is {wanted!r}; use one of {', '.join(FORMATS)}")
    if not exports.acquire(blocking=False):
        raise Busy("as many exports of this store are on their way as it allows at a time. Ask again soon.", 5.0)
    with ExitStack() as ending:
        ending.callback(exports.release)
        with call.reading() as view:
            file = ending.enter_context(disk.nameless())
            export_into(view._view(), file, f".{wanted}", progress=call.require_time)
        file.flush()
        headers = {"content-length": str(os.fstat(file.fileno()).st_size), "softkv-commit": str(call.commit)}
        return _File(file.fileno(), headers, ending.pop_all().close)


def _deleted(call: Call) -> dict[str, int]:
    return {"deleted": call.served.handle.delete(**call.options())}


def _cleared(call: Call) -> dict[str, int]:
    return {"deleted": call.served.handle._cleared(call.form.batch)}


def _changing(
    method: str, path: str, change: Callable[..., Any], reply: Any = NoneType, *but: str, **fields: Any
) -> Endpoint:
    """An endpoint that calls a method of the handle; its form has the parameters of the method, if it has any."""
    form = form_of(change, *but, **fields) if len(signature(change).parameters) > 1 else None

    def changed(call: Call) -> Any:
        return getattr(call.served.handle, change.__name__)(**call.options())  # a cluster overrides methods

    return Endpoint(method, path, changed, form, reply, writes=True)


_Page = dict[str, Any]
_FORMAT = {"format": {"enum": FORMATS, "default": FORMATS[0]}}
_ANY: Any = Any, ...
_KEYS: Any = str | Sequence[str | None] | None, None
_OF_FRAMES = ("key", "text", "value", "payload", "vector")  # frames are not sent
_CONFLICT = Literal["error", "replace", "ignore"], "error"
_DELETION = form_of(SoftKV.delete, keys=(str | list[str] | None, None))
ENDPOINTS = (
    Endpoint("POST", "/v1/{store}/items/get", _got, GetForm, _Page),
    Endpoint("POST", "/v1/{store}/items/select", _selected, SelectForm, _Page),
    Endpoint("POST", "/v1/{store}/columns", _columns, ColumnsForm, _Page),
    Endpoint("GET", "/v1/{store}/export", _export, media=BINARY, query=_FORMAT, crew="exports"),
    Endpoint("POST", "/v1/{store}/items/delete", _deleted, _DELETION, dict[str, int], writes=True),
    Endpoint("POST", "/v1/{store}/items/clear", _cleared, ClearForm, dict[str, int], writes=True),
    Endpoint("POST", "/v1/{store}/items/pop", _popped, PopForm, _Page, writes=True),
    _changing(
        "POST", "/v1/{store}/items", SoftKV.add, Added, *_OF_FRAMES, keys=_KEYS, on_conflict=_CONFLICT, values=_ANY
    ),
    _changing("PATCH", "/v1/{store}/items", SoftKV.set_values, Added, values=_ANY),
    _changing("PUT", "/v1/{store}/temperature", SoftKV.set_temperature, temperature=(float | None, ...)),
    _changing("DELETE", "/v1/{store}/index", SoftKV.drop_index),
    _changing("DELETE", "/v1/{store}/fit", SoftKV.forget_fit, bool),
    _changing("DELETE", "/v1/{store}/guard", SoftKV.forget_guard, bool),
    _changing("DELETE", "/v1/{store}/reembedding", SoftKV.abandon_reembedding),
)
