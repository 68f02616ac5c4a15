"""What all endpoints of the server have in common: turn a request into a call, and its result into a response.

An `Endpoint` is a row of a table: method, path, the form of its body, what it does, what it answers. Each file of
endpoints ends with such a table, and app.py puts them together. `/openapi.json` is made of the same rows.

Does not know what any endpoint does, and leaves the length of bodies to the gate.
"""

import asyncio
import inspect
import json
import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json, to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from softkv import portrait
from softkv.database.handle import StoreView
from softkv.doors import hints, wire
from softkv.doors.server.forms import RequestForm
from softkv.doors.server.lane import LATE
from softkv.doors.server.problems import Refused, reply_to
from softkv.doors.server.served import Served, Stores
from softkv.errors import AccessRefused, DeadlinePassed, InputError, SoftKVError
from softkv.files import notation
from softkv.files.record import Misfit
from softkv.logs import keeping_hints, log_of

LOG = log_of(__name__)
JSON = "application/json"
LARGEST_REPLY = 64 << 20
SMALLER = {"items": "for fewer items", "queries": "with fewer queries at once", "show": "with a smaller show"}
ON_LOOP = 1 << 16  # bytes of a body that is read on the event loop; larger ones keep others waiting
ALONE = ("0", "1")  # of the header Softkv-Alone
SECONDS, LONGEST = 30.0, 600.0  # the deadline of a request: by default, and at most


@dataclass(slots=True, eq=False)
class Call:
    """One request, read and checked, as the work of an endpoint gets it."""

    stores: Stores
    request: Request
    endpoint: "Endpoint"
    form: Any = None  # the form of the endpoint, filled in
    held: int = 0  # bytes of its body
    commit: int | None = None  # of the store that was read, for the header Softkv-Commit
    seconds: float = SECONDS  # in which the client wants the answer
    begun: float = field(default_factory=time.monotonic)
    _served: Served | None = None

    @property
    def served(self) -> Served:
        """The store that the path names."""
        assert self._served is not None
        return self._served

    @property
    def token(self) -> str:
        """The owner of the request, as a name that is no secret."""
        return str(self.request.scope.get("softkv.token", ""))

    @property
    def alone(self) -> bool:
        """Whether the question must not be joined with others."""
        given = self.request.headers.get("softkv-alone", "0")
        if given not in ALONE:
            raise InputError(f"expected Softkv-Alone to be 0 or 1, got {given!r:.60}.")
        return given == "1"

    @property
    def snapshot(self) -> str | None:
        """The name of the snapshot to read, if one is given."""
        return self.request.headers.get("softkv-snapshot")

    @property
    def packs(self) -> bool:
        """Whether the client accepts a packed answer, with arrays and classes, instead of JSON."""
        return wire.MEDIA_TYPE in self.request.headers.get("accept", "")

    def options(self, *but: str) -> dict[str, Any]:
        """The fields of the form that were given, without some; the others are at the defaults of the library."""
        given = () if self.form is None else self.form.model_fields_set
        return {name: getattr(self.form, name) for name in given if name not in but}

    @contextmanager
    def reading(self) -> Iterator[StoreView]:
        """The store as of one commit, the newest or that of the client's snapshot, within the block."""
        if self.snapshot is None:
            view = self.served.now(partial=getattr(self.form, "partial", False))
            self.commit = view.commit
            yield view
        else:
            with self.served.leases.using(self.snapshot, self.token) as view:
                self.commit = view.commit
                yield view

    async def beside(self, work: Callable[["Call"], Any]) -> Response:
        """The result of some work, done in a thread for reading, as a response."""
        crew = self.served.crews["writes" if self.endpoint.writes else self.endpoint.crew]
        response: Response = await crew.run(lambda: self.worked(work), self.seconds)
        return response

    def worked(self, work: Callable[["Call"], Any]) -> Response:
        """The result of some work, as a response, with the hints that it gave."""
        with keeping_hints() as found:
            response = self.respond(work(self))
        if found:
            response.headers[hints.HEADER] = json.dumps(hints.told(found, self.served.without_paths))
        return response

    def respond(self, found: Any) -> Response:
        """The response with this result."""
        if isinstance(found, Response):
            return found
        body, media = written(found, packs=self.packs, form=self.endpoint.form)
        headers = {} if self.commit is None else {"softkv-commit": str(self.commit)}
        return Response(body, self.endpoint.status, headers, media)

    def require_right(self, *, writes: bool) -> None:
        """Refuse a token that may only read and, for what `writes`, a store that is served to be read only."""
        if self.request.scope.get("softkv.role") == "reader":
            raise AccessRefused("this token may only read. Ask with a token that may write.")
        if writes and self.served.read_only:
            raise AccessRefused(f"the store {self.served.name!r} is served to be read only.")

    def require_time(self, *_: Any) -> None:
        """Raise DeadlinePassed once the deadline has passed; long work calls this now and then."""
        if time.monotonic() > self.begun + self.seconds:
            raise DeadlinePassed(LATE)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint: a row of the tables of endpoints.

    `work` gets a `Call` and returns what is sent: a result of the library, or plain lists, dicts and arrays, as JSON or
    packed (wire.py) as the client accepts; or a Response as it is. A plain function runs in a thread, that of the
    writer if the endpoint `writes`, else one of its `crew`; a coroutine function runs on the event loop, and must not
    do what takes long. Errors of the library become problems; others are logged without their words.

        def _deleted(call: Call) -> dict[str, int]:
            return {"deleted": call.served.handle.delete(call.form.keys, batch=call.form.batch)}

        ENDPOINTS = (Endpoint("POST", "/v1/{store}/items/delete", _deleted, Deletion, dict[str, int], writes=True),)

    In /openapi.json, `form` is the body, `reply` (a type, as pydantic knows them) the answer in JSON.
    """

    method: str
    path: str
    work: Callable[[Call], Any]
    form: type[RequestForm] | None = None
    reply: Any = None
    status: int = 200
    writes: bool = False
    crew: str = "reads"  # whose threads do the work of an endpoint that writes nothing, as served.py names them
    media: str = JSON  # of the answer where nothing else was accepted
    query: Mapping[str, Any] = field(default_factory=dict)  # what the query string may hold, as schemas by name
    headers: Mapping[str, Any] = field(default_factory=dict)  # that are heeded beside those of every endpoint

    async def answered(self, stores: Stores, request: Request) -> Response:
        """The answer to a request."""
        call = Call(stores, request, self)
        request.scope["softkv.route"] = self.path  # for the log and the figures of the gate
        try:
            return await self._done(call)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:
            return self.refusal(error, call)
        finally:
            stores.hold(-call.held)
            call.seconds = 0.0  # work that still runs, since the server ends, does so where it looks at the time

    async def _done(self, call: Call) -> Response:
        call.seconds = _seconds(call.request)
        if call.request.query_params.keys() - self.query.keys():
            raise InputError(f"expected {', '.join(self.query) or 'nothing'} in the query string, got other names.")
        if "{store}" in self.path:
            call._served = call.stores[call.request.path_params["store"]]
        if self.writes:
            call.require_right(writes=True)
        if self.form is not None:
            read, body = await _given(call)
            large = len(body) > ON_LOOP
            call.form = await asyncio.to_thread(self._filled, read, body) if large else self._filled(read, body)
        if inspect.iscoroutinefunction(self.work):
            return call.respond(await self.work(call))
        return await call.beside(self.work)

    def _filled(self, read: Callable[[bytes], Any], body: bytes) -> RequestForm:
        assert self.form is not None
        try:
            return self.form.model_validate(read(body))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(one)[:60] for one in first["loc"]) or "the body"
            untold = first["type"] == "union_tag_not_found"
            words = f"expected the field {first['ctx']['discriminator']}" if untold else first["msg"]
            raise InputError(f"{place}: {words[:1].lower()}{words[1:300]}.") from None

    def refusal(self, error: Exception, call: Call) -> Response:
        """The problem that an error is to the client."""
        if not isinstance(error, (SoftKVError, Refused)):
            last = traceback.extract_tb(error.__traceback__)[-1]
            LOG.error("%s in %s %s (%s:%s)", type(error).__name__, self.method, self.path, last.name, last.lineno)
        status, headers, body = reply_to(error, call._served.without_paths if call._served else str)
        return Response(body, status, headers)


def written(found: Any, *, packs: bool, form: type[RequestForm] | None = None) -> tuple[bytes, str]:
    """A body with this result, which was asked by a form, and its media type."""
    if packs:
        body, media = wire.packed(found), wire.MEDIA_TYPE
    else:
        body, media = _in_json(plain(found)), JSON
    if len(body) > LARGEST_REPLY:
        raise too_large(len(body), form)
    return body, media


def _in_json(told: Any) -> bytes:
    """Lists and dicts as JSON, several times as fast as Python's json module."""
    try:
        return to_json(told, inf_nan_mode="null", fallback=lambda x: x.tolist())
    except ValueError:  # half a surrogate pair, of a client's own words
        return portrait.as_json(told).encode("utf-8", "backslashreplace")


def plain(found: Any) -> Any:
    """A result of the library as lists and dicts."""
    if hasattr(found, "to_dict"):
        return found.to_dict()
    return asdict(found) if is_dataclass(found) and not isinstance(found, type) else found


def too_large(size: float, form: type[RequestForm] | None) -> InputError:
    """The refusal of an answer of so many bytes, with what the form has to make it smaller."""
    found = [advice for name, advice in SMALLER.items() if form is not None and name in form.model_fields]
    return InputError(
        f"expected an answer of at most {LARGEST_REPLY >> 20} MiB, got one of about {size / (1 << 20):,.0f}. "
        f"Ask {', or '.join(found) or 'for less'}."
    )


def _seconds(request: Request) -> float:
    given = request.headers.get("softkv-deadline")
    if given is None:
        return SECONDS
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= LONGEST:
        raise InputError(f"expected Softkv-Deadline as seconds, above 0 and at most {LONGEST:g}, got {given!r:.60}.")
    return seconds


async def _given(call: Call) -> tuple[Callable[[bytes], Any], bytes]:
    """The body of a request, and how to read what it says it is."""
    media = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in (JSON, wire.MEDIA_TYPE):
        raise Refused(415, InputError(f"expected a body of type {JSON} or {wire.MEDIA_TYPE}, got {media!r:.60}."))
    return _parsed if media == JSON else wire.unpacked, await _body(call)


async def _body(call: Call) -> bytes:
    body = bytearray()  # not a list of parts, since a client could send millions
    async for part in call.request.stream():
        call.stores.hold(len(part))
        call.held += len(part)
        body += part
    return bytes(body)


def _parsed(body: bytes) -> Any:
    """The value of a JSON body; one that is nested too deeply, or would take too much memory, is refused."""
    if len(body) <= ON_LOOP:
        with suppress(ValueError):  # what is wrong with it is told below
            flat = from_json(body, allow_inf_nan=False)
            # Three times as fast, but of two equal names the last wins; then there are more colons than names.
            if isinstance(flat, dict) and len(flat) == body.count(b":"):
                _require_shallow(flat, body)
                return flat
    try:
        text = str(body, "utf-8")
        wire.require_few(text)
        document = notation.parsed(text)
    except (UnicodeDecodeError, Misfit) as error:
        raise Refused(400, InputError(f"expected a body of JSON in UTF-8, got {error}.")) from error
    _require_shallow(document, body)
    return document


def _require_shallow(document: Any, body: bytes) -> None:
    if body.count(b"[") + body.count(b"{") <= wire.DEPTH:
        return
    level = [document]
    for _ in range(wire.DEPTH):
        level = [
            one
            for outer in level
            for one in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(one, (list, dict))
        ]
        if not level:
            return
    raise Refused(400, InputError(f"expected lists and objects at most {wire.DEPTH} deep within each other."))
