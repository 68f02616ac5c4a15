"""Requests to a server, retried where that is safe; used by handles on served stores.

A request is sent again, for `patience` seconds, if there was no answer or the server was busy. That is safe because
reads change nothing, and writes and jobs carry a name under which the server carries them out once. Threads may share a
connection; it does not survive a fork.

Does not know what is asked (reading.py, handle.py).
"""

import ipaddress
import math
import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from softkv.doors import hints
from softkv.doors.server.problems import error_of
from softkv.doors.shapes import fits
from softkv.doors.wire import LONGEST_BODY, MEDIA_TYPE, packed, unpacked
from softkv.errors import (
    HandleClosed,
    InputError,
    MissingExtra,
    NotRemote,
    ServerError,
    ServerUnreachable,
    SoftKVError,
    Unauthorized,
)
from softkv.files import notation
from softkv.files.record import Misfit
from softkv.storage.threads import OwnLock

if TYPE_CHECKING:
    import httpx

TOKEN = "SOFTKV_TOKEN"  # the variable that holds the token if none is given
PATIENCE = 30.0  # seconds for which a request is sent again, once the server has answered
DEADLINE, WAITS = 600, 615.0  # seconds: the longest deadline a server accepts; and until an answer is given up
SILENCE = 45.0  # seconds without news of a job, which the server sends every fifteen
SHORTEST, LONGEST = 0.05, 2.0  # seconds between two tries


class ServerConnection:
    """One store of one server, by its URL."""

    def __init__(
        self, url: str, token: str | None, *, alone: bool = False, wait: float = 0.0, lasting: float = PATIENCE
    ) -> None:
        """A connection that waits so many seconds for a first answer, and `lasting` for each of the others."""
        try:
            import httpx
        except ImportError as error:
            raise MissingExtra("a store behind a URL", package="httpx", extra="remote") from error
        self._httpx, self.patience, self._closed = httpx, wait, False
        self._lasting = lasting
        base, store, loopback = _parts(url)
        self._base, self.url, self._at = base, f"{base}/{quoted(store)}", f"{base}/v1/{quoted(store)}/"
        self._own = OwnLock(self.url)
        self.left: deque[str] = deque()  # snapshots that are no longer in use
        token = os.environ.get(TOKEN) if token is None else token
        headers = {"Accept": f"{MEDIA_TYPE}, application/json;q=0.5"} | ({"Softkv-Alone": "1"} if alone else {})
        self._client = httpx.Client(
            headers=headers
            | {"Softkv-Deadline": str(DEADLINE)}
            | ({"Authorization": f"Bearer {_checked(token)}"} if token else {}),
            timeout=httpx.Timeout(WAITS, connect=5.0, pool=None),
            # Of its own, since without the environment's proxies httpx would not heed its SSL_CERT_FILE either.
            verify=httpx.create_ssl_context() if base.startswith("https:") else False,
            trust_env=not loopback,  # no proxy stands between two processes of one machine
        )

    def ask(
        self, method: str, path: str, told: Any, document: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> Any:
        """The result of a request below the store, which has to be as the annotation says that is `told`."""
        self._require_open()
        self._let_go()
        body = _body(document)
        url, more = self._at + path, {"Content-Type": MEDIA_TYPE, **(headers or {})}
        found = self._result(self._tried(lambda: self._client.request(method, url, content=body, headers=more)))
        self.require(fits(found, told))
        return found

    def require(self, right: bool) -> None:
        """Refuse an answer that is not `right`."""
        if not right:
            raise ServerError(f"{self.url} answered something else than `softkv serve` does. Is another server there?")

    @contextmanager
    def believing(self) -> Iterator[None]:
        """Within the block, where an answer is read, inconsistent content is an error of the server."""
        try:
            yield
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, SoftKVError):
                raise
            self.require(False)

    def pages(self, start: int, fetch: Callable[[int], Any], stop: float = math.inf) -> Iterator[Any]:
        """Page after page, each from where the previous one ended."""
        place: int | None = start
        while place is not None and place < stop:
            page = fetch(place)
            yield page
            self.require(page["next"] is None or page["next"] > place)
            place = page["next"]

    def _let_go(self) -> None:
        """Release unused snapshots; not when they are collected, which may be in the middle of another request."""
        with suppress(IndexError, self._httpx.RequestError):
            while True:
                self._client.delete(f"{self._at}snapshots/{self.left.popleft()}")

    @contextmanager
    def stream(
        self, path: str, headers: Mapping[str, str] | None = None, *, silence: float = WAITS
    ) -> Iterator[Iterator[bytes]]:
        """The answer to a GET below the store, piece by piece."""
        timeout = self._httpx.Timeout(silence, connect=5.0)
        request = self._client.build_request("GET", self._at + path, headers=headers, timeout=timeout)
        answer = self._tried(lambda: self._client.send(request, stream=True))
        try:
            if answer.status_code != 200:
                answer.read()
                self._result(answer)
            yield answer.iter_bytes()
        except self._httpx.RequestError as error:
            raise self._unreachable(error) from error
        finally:
            answer.close()

    def _tried(self, send: Callable[[], "httpx.Response"]) -> "httpx.Response":
        """The first answer from a server that is not busy, else the last one; an error if there is none."""
        self._require_open()
        ends, pause = time.monotonic() + self.patience, SHORTEST
        while True:
            late = time.monotonic() + pause > ends
            try:
                answer = send()
                self.patience = max(self.patience, self._lasting)
                if late or answer.status_code not in (429, 503):
                    hints.give(answer.headers.get(hints.HEADER))
                    return answer
                after = answer.headers.get("Retry-After", "")
                pause = max(pause, min(LONGEST, float(after))) if after.isdecimal() else pause
                answer.close()
            except self._httpx.RequestError as error:
                if late:
                    raise self._unreachable(error) from error
            except RuntimeError:  # another thread has closed it meanwhile
                self._require_open()
                raise
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST)

    def _unreachable(self, error: Exception) -> ServerUnreachable:
        advice = "Is `softkv serve` running there?"
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            advice = "Name its certificate, or that of who signed it, in the variable SSL_CERT_FILE, to trust it."
        return ServerUnreachable(f"no answer from {self.url} ({type(error).__name__}: {error}). {advice}")

    def _result(self, answer: "httpx.Response") -> Any:
        """What an answer holds, or the error that it tells of."""
        kind = answer.headers.get("Content-Type", "").partition(";")[0].strip()
        if answer.is_success and kind == MEDIA_TYPE:
            try:
                return unpacked(bytearray(answer.content), classes=True)  # arrays of the caller's own
            except InputError as error:
                raise ServerError(f"{self.url} sent what cannot be read: {error}") from error
        if answer.is_success and kind in ("", "application/json"):
            return _json(answer) if answer.content else None
        if answer.status_code == 401:
            shown = "one that it does not know" if "Authorization" in self._client.headers else "none"
            raise Unauthorized(
                f"the server at {self._base} wants a token, and was shown {shown}. Give what stands behind the # of "
                f"the URL that `softkv serve` prints, or one of --token-file, as token=, or in the variable {TOKEN}."
            )
        if not answer.is_success and kind == "application/problem+json":
            raise error_of(_json(answer))
        raise ServerError(
            f"{self.url} answered {answer.status_code} with {kind or 'nothing'}, as no `softkv serve` does."
        )

    def _require_open(self) -> None:
        self._own.require_own_process()
        if self._closed:
            raise HandleClosed(f"{self.url} was closed; open it again")

    def close(self) -> None:
        """Close the connection; more than once does no harm, and a forked child leaves it to its parent."""
        if not self._closed:
            self._closed = True
            if not self._own.is_inherited():
                self._client.close()


def quoted(name: Any) -> str:
    """A name that came from a user or a server, as a part of a path or a header, which it cannot end."""
    return quote(str(name), safe="")


def _parts(url: str) -> tuple[str, str, bool]:
    """The server's address, the name of the store, and whether both are on this machine."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    # Subtle: no message repeats what was given, which may hold the token; nor does the cause of one.
    except ValueError:
        raise InputError("expected a URL like http://host:7411/store, got one with an odd host or port.") from None
    if parts.username is not None or parts.query or parts.fragment:
        raise InputError(
            "expected a URL like http://host:7411/store and nothing more, since URLs end up in logs and histories. "
            f"Give the token as token=, or in the variable {TOKEN}."
        )
    name = unquote(parts.path.strip("/"))
    if not host or not name or "/" in name:
        raise InputError(
            f"expected a URL that names a server and one of its stores, as http://host:7411/store, got {url}"
        )
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{port}" if port else ""), name, _is_loopback(host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _checked(token: str) -> str:
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise InputError("expected a token of printable ASCII characters without blanks, as `softkv serve` prints it.")
    return token


def _body(document: Any) -> bytes | None:
    """A document as it is sent, or why it cannot be."""
    if document is None:
        return None
    try:
        body = packed(document)
    except (TypeError, ValueError) as error:
        raise NotRemote(f"{error}. A server takes texts, numbers, lists and arrays of numbers.") from error
    if len(body) > LONGEST_BODY:
        raise InputError(
            f"expected at most {LONGEST_BODY:,} bytes in one request, got {len(body):,}. Nothing was sent: what "
            "one call asks or changes is done wholly or not at all. Give fewer at a time; `load` divides what it adds."
        )
    return body


def _json(answer: "httpx.Response") -> Any:
    try:
        return notation.parsed(answer.text)
    except Misfit as error:
        raise ServerError(f"expected JSON from the server, got {error}.") from error
