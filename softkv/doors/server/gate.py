"""The checks that every request passes before its body is read: its origin, its token, and its length.

Pages of other sites must not reach a server on this machine, whether by DNS rebinding (the Host is compared with a
list), or by a form or a script (Origin and Sec-Fetch-Site; no CORS header is ever sent). Every request needs a token.
All this is decided by the headers alone, for every method and path; only /health, /ready and the page at / answer
without a token, and say nothing of stores.

Does not limit the time that headers and bodies take (protocol.py), and does not know of stores (app.py).
"""

import time
import traceback
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from hmac import compare_digest
from typing import Any

from softkv.doors.server.metrics import LOG, Metrics
from softkv.doors.server.problems import Refused, reply_to
from softkv.doors.wire import LONGEST_BODY
from softkv.errors import AccessRefused, InputError, Unauthorized
from softkv.page import document, policy

AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

LONGEST_HEAD = 16 << 10
SAFE = {
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"cache-control": b"no-store",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}
HTML = {"content-type": "text/html; charset=utf-8"}
TEXT = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
WHERE = "TOKEN stands behind the # of the URL that `softkv serve` prints, or in its --token-file"
_USUAL = {"http": 80, "https": 443}
_TOKEN_NAMES = {b"token", b"access_token", b"api_key", b"authorization"}
_IN_NAMES = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.")
_IN_ADDRESSES = frozenset("abcdef0123456789:.")


def digest_of(token: bytes) -> bytes:
    """The digest kept of a token: all are equally long, so that comparisons take equally long."""
    return sha256(token).digest()


@dataclass(frozen=True, slots=True)
class Rules:
    """What requests are allowed: hosts with their ports, and tokens, by their digests.

    `peers` are the addresses that may connect, None for all; `port` is that of a Host without a port.
    """

    hosts: Collection[tuple[str, int]]
    port: int
    writers: Collection[bytes] = field(repr=False)
    readers: Collection[bytes] = field(default=(), repr=False)
    peers: Collection[str | None] | None = None


def authority(text: str, port: int) -> tuple[str, int] | None:
    """The name and the port in a Host header, None where it is odd; one look at each character.

    An address of IPv6 keeps its brackets. A name may end in one dot, as fully qualified names do.
    """
    text = text.lower()
    if text.startswith("["):
        name, closed, rest = text[1:].partition("]")
        good, named = bool(closed) and bool(name) and _IN_ADDRESSES.issuperset(name), f"[{name}]"
    else:
        name, colon, rest = text.partition(":")
        rest = colon + rest
        named = name.removesuffix(".")
        good = bool(named) and _IN_NAMES.issuperset(named)
    digits = rest[1:]
    if not good or len(text) > 300 or (rest and not rest.startswith(":")):
        return None
    if not rest:
        return named, port
    return (named, int(digits)) if digits.isdecimal() and len(digits) <= 5 else None


class Gate:
    """An ASGI application around another: it refuses a request, or passes it on and counts the bytes of its body."""

    def __init__(self, app: App, rules: Rules, metrics: Metrics) -> None:
        self._app, self._rules, self._metrics = app, rules, metrics

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._counted(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _counted(self, scope: Any, receive: Receive, send: Send) -> None:
        passage, began = _Passage(receive, send), time.perf_counter()
        self._metrics.running += 1
        try:
            await self._answer(scope, passage)
        except Exception as error:
            if not isinstance(error, Refused) and not passage.over:  # its words may be a client's
                place = "".join(traceback.format_tb(error.__traceback__)[-3:])
                LOG.error("unexpected %s in\n%s", type(error).__name__, place)
            await passage.refuse(_too_large() if passage.over else error)
        finally:
            self._metrics.running -= 1
            self._metrics.asked -= "softkv.role" in scope
            self._metrics.count(scope, passage.status, time.perf_counter() - began)

    async def _answer(self, scope: Any, passage: "_Passage") -> None:
        headers = _headers(scope)
        self._require_origin(scope, headers)
        if scope["path"] in ("/health", "/ready"):
            scope["softkv.route"] = scope["path"]
            if scope["path"] == "/ready":
                await self._metrics.look()
            return await passage.tell(204 if scope["path"] == "/health" or self._metrics.ready() else 503)
        if scope["path"] == "/" and scope["method"] == "GET" and not scope["query_string"]:
            scope["softkv.route"] = "/"
            body, passage.safe = _page()
            return await passage.tell(200, body, HTML)
        self._require_token(scope, headers)
        self._metrics.asked += 1
        passage.left = _require_length(headers)
        if scope["path"] == "/metrics" and scope["method"] == "GET":
            scope["softkv.route"] = "/metrics"
            await self._metrics.look()
            return await passage.tell(200, self._metrics.text().encode(), TEXT)
        await self._app(scope, passage.receive, passage.send)
        if passage.over:
            raise _too_large()
        return None

    def _require_origin(self, scope: Any, headers: dict[bytes, list[str]]) -> None:
        """Refuse requests by pages of other sites, and hosts that are not ours."""
        rules = self._rules
        if rules.peers is not None and (scope.get("client") or ("",))[0] not in rules.peers:
            raise Refused(403, AccessRefused("this server answers to its proxy alone. Ask the proxy."))
        hosts = headers.get(b"host", [])
        if len(hosts) != 1 or authority(hosts[0], rules.port) not in rules.hosts:
            raise Refused(421, AccessRefused("this server has another name; `softkv serve --allow-host` adds one"))
        for origin in headers.get(b"origin", []):
            scheme, _, name = origin.partition("://")
            if scheme not in _USUAL or authority(name, _USUAL[scheme]) not in rules.hosts:
                raise Refused(403, AccessRefused("pages of other sites are not answered"))
        if not {"same-origin", "none"}.issuperset(headers.get(b"sec-fetch-site", [])):
            raise Refused(403, AccessRefused("pages of other sites are not answered"))
        if any("websocket" in one.lower() for one in headers.get(b"upgrade", [])):
            raise Refused(400, InputError("there are no websockets here"))
        if not scope["path"].startswith("/"):
            raise Refused(400, InputError("expected a path that starts with a slash"))

    def _require_token(self, scope: Any, headers: dict[bytes, list[str]]) -> None:
        """Find out what the token allows; its name and right are put into the scope for the application."""
        named = {part.partition(b"=")[0].lower() for part in scope["query_string"].split(b"&")}
        if named & _TOKEN_NAMES or b"%" in b"".join(named):
            raise Refused(400, Unauthorized("a token belongs in the header Authorization, never in the URL"))
        given = headers.get(b"authorization", [])
        scheme, _, token = (given[0] if len(given) == 1 else "").partition(" ")
        digest = digest_of(token.strip(" ").encode("latin-1"))
        # Subtle: all are compared, also after a match, so that the time does not show which one matched.
        writes = any([compare_digest(digest, one) for one in self._rules.writers])  # noqa: C419
        reads = any([compare_digest(digest, one) for one in self._rules.readers])  # noqa: C419
        if scheme.lower() != "bearer" or not (writes or reads):
            raise Refused(401, Unauthorized(f"expected the header `Authorization: Bearer TOKEN`; {WHERE}"))
        scope["softkv.role"], scope["softkv.token"] = ("writer" if writes else "reader"), digest.hex()[:32]


@cache
def _page() -> tuple[bytes, dict[bytes, bytes]]:
    """The page, without any data, and its headers."""
    allowed = f"{policy(live=True)}; frame-ancestors 'none'".encode()
    return document(None).encode(), {**SAFE, b"content-security-policy": allowed}


def _headers(scope: Any) -> dict[bytes, list[str]]:
    """The headers by name; refused if they are too long altogether."""
    size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    headers: dict[bytes, list[str]] = {}
    for name, value in scope["headers"]:
        size += len(name) + len(value) + 4
        headers.setdefault(name.lower(), []).append(value.decode("latin-1"))
    if size > LONGEST_HEAD:
        raise Refused(431, InputError(f"the headers are longer than {LONGEST_HEAD >> 10} KiB"))
    return headers


def _require_length(headers: dict[bytes, list[str]]) -> int:
    """The largest number of bytes that a body may have; refuses a body declared as longer."""
    lengths = headers.get(b"content-length", ["0"])
    if len(lengths) != 1 or not lengths[0].isdecimal() or {b"content-length", b"transfer-encoding"} <= headers.keys():
        raise Refused(400, InputError("expected one length of the body"))
    if len(lengths[0]) > 15 or int(lengths[0]) > LONGEST_BODY:
        raise _too_large()
    return LONGEST_BODY


def _too_large() -> Refused:
    return Refused(413, InputError(f"expected a body of at most {LONGEST_BODY >> 20} MiB. Send it in parts."))


class _Passage:
    """The messages between one client and the application: bytes received are counted, safe headers are sent."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.status, self.left, self.safe = 0, 0, SAFE

    @property
    def over(self) -> bool:
        """Whether the body turned out too long, before anything was answered."""
        return self.left < 0 and not self.status

    async def receive(self) -> AsgiMessage:
        """The next piece of the body; where it is too long, the application is told that the client has gone."""
        message = await self._receive()
        self.left -= len(message.get("body", b""))
        return message if self.left >= 0 else {"type": "http.disconnect"}

    async def send(self, message: AsgiMessage) -> None:
        """Send a piece of the answer; where the body was too long, what the application makes of it is not sent."""
        if self.over:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            kept = [one for one in message.get("headers", []) if one[0].lower() not in self.safe]
            message = {**message, "headers": [*kept, *self.safe.items()]}
        await self._send(message)

    async def tell(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send a whole answer."""
        self.left = max(self.left, 0)
        sent = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        sent += [(b"content-length", str(len(body)).encode())] if body else []
        await self.send({"type": "http.response.start", "status": status, "headers": sent})
        await self.send({"type": "http.response.body", "body": body})

    async def refuse(self, error: Exception) -> None:
        """Send a problem, if nothing has been sent yet; an answer that has begun is broken off."""
        if self.status:
            raise ConnectionAbortedError("the answer had begun")
        status, headers, body = reply_to(error)
        await self.tell(status, body, headers | ({"www-authenticate": "Bearer"} if status == 401 else {}))
