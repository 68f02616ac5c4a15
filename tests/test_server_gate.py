"""The gate in front of the server: each rule with the attack that it is for."""

import asyncio
import itertools
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from softkv.doors.server import gate
from softkv.doors.server.gate import Gate, Rules, authority, digest_of
from softkv.doors.server.metrics import Metrics
from softkv.page import document

WRITER, READER = "w" * 43, "r" * 43
HOSTS = {("localhost", 7411), ("127.0.0.1", 7411), ("[::1]", 7411), ("db.example.com", 443)}
RULES = Rules(HOSTS, 80, [digest_of(WRITER.encode())], [digest_of(READER.encode())])
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
OURS = {"host": "127.0.0.1:7411", "authorization": f"Bearer {WRITER}"}


class Reply(NamedTuple):
    """What came out of the gate, and what went in."""

    status: int
    headers: dict[str, str]
    body: bytes
    scope: dict[str, Any]
    taken: int  # pieces of the body that were read

    @property
    def error(self) -> str:
        """The class of the error in the problem."""
        assert self.headers["content-type"] == "application/problem+json"
        document = json.loads(self.body)
        assert document["status"] == self.status
        return str(document["error"])


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the length of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RuntimeError("the client has gone")
        size, more = size + len(message["body"]), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"cache-control", b"public")]})
    await send({"type": "http.response.body", "body": b"%d" % size})


def asked(
    headers: dict[str, str] | list[tuple[str, str]] = OURS,
    method: str = "GET",
    path: str = "/v1/stores",
    *,
    query: str = "",
    body: Iterable[bytes] = (b"",),
    rules: Rules = RULES,
    around: Any = app,
    client: str = "127.0.0.1",
) -> Reply:
    """Send one request through a gate."""
    pairs = headers.items() if isinstance(headers, dict) else headers
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in pairs],
        "scheme": "http",
        "client": (client, 5000),
    }
    sent: list[Any] = []
    taken = itertools.count()
    pieces = iter(body)

    async def receive() -> Any:
        next(taken)
        piece = next(pieces, None)
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(Gate(around, rules, Metrics([]))(scope, receive, send))
    assert [one["type"] for one in sent] == ["http.response.start", "http.response.body"]
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    assert len(found) == len(sent[0]["headers"]), "each header once"
    return Reply(sent[0]["status"], found, sent[1]["body"], scope, next(taken))


def test_who_asks_from_this_machine_with_the_token_is_let_in() -> None:
    """All names of the loopback will do, and what the application is told of the token is no secret."""
    for host in ("127.0.0.1:7411", "localhost:7411", "[::1]:7411", "LOCALHOST:7411", "localhost.:7411"):
        reply = asked(OURS | {"host": host})
        assert (reply.status, reply.scope["softkv.role"]) == (200, "writer")
    other = asked(OURS | {"authorization": f"bearer {READER}"})
    assert other.scope["softkv.role"] == "reader"
    assert other.scope["softkv.token"] != reply.scope["softkv.token"]
    assert not {WRITER, READER} & set(map(str, other.scope.values()))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", ["/v1/stores", "/health", "/metrics", "/openapi.json", "/"])
def test_a_name_that_somebody_lets_point_here_is_refused(method: str, path: str) -> None:
    """DNS rebinding: whatever is asked, and with whatever token."""
    reply = asked(OURS | {"host": "evil.example:7411"}, method, path)
    assert (reply.status, reply.error, reply.taken) == (421, "AccessRefused", 0)


@pytest.mark.parametrize(
    "host",
    [
        "", " ", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:07411x", "127.0.0.1:+7411", "127.0.0.1:7411:7411",
        "127.0.0.1:٧٤١١", "127.0.0.1:", "localhost:7411.evil.example", "localhost.evil.example:7411",
        "evil.example@127.0.0.1:7411", "127.0.0.1:7411@evil.example", "127.0.0.1:7411/", "127.0.0.1:7411#",
        "127.1:7411", "2130706433:7411", "0x7f.1:7411", "0.0.0.0:7411", "::1:7411", "[::1]", "[::1:7411", "[::1]]:7411",
        "[::1%25lo]:7411", "[::ffff:127.0.0.1]:7411", "[]:7411", "[localhost]:7411", "localhost..:7411",
        ".localhost:7411", "localhost :7411", "localhost:7411, evil.example", "ｌocalhost:7411", "a" * 10_000,
    ],
)  # fmt: skip
def test_odd_spellings_of_the_host_are_refused(host: str) -> None:
    """What is in the list will do, spelled as hosts are."""
    assert asked([("host", host.encode().decode("latin-1")), ("authorization", OURS["authorization"])]).status == 421


def test_the_host_is_named_once() -> None:
    """To name none is refused, and to name two, of which another program may believe the other one."""
    assert asked({"authorization": OURS["authorization"]}).status == 421
    twice = [("host", "127.0.0.1:7411"), ("host", "127.0.0.1:7411"), ("authorization", OURS["authorization"])]
    assert asked(twice).status == 421


def test_a_name_that_was_allowed_is_answered_at_its_port_alone() -> None:
    """A Host without a port stands for the usual one."""
    rules = Rules(HOSTS, 443, RULES.writers)
    for host, status in (("db.example.com", 200), ("DB.Example.com.:443", 200), ("db.example.com:7411", 421)):
        assert asked(OURS | {"host": host}, rules=rules).status == status
    assert asked(OURS | {"host": "db.example.com"}).status == 421


def test_hosts_are_taken_apart() -> None:
    """They become a name in lower case without a dot at its end, and a port."""
    assert authority("Films.Example.:80", 7) == ("films.example", 80)
    assert authority("[::1]", 7) == ("[::1]", 7)
    assert authority("films.example:123456", 7) is None


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", ["/v1/films/items", "/health", "/metrics"])
@pytest.mark.parametrize(
    "sent",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://127.0.0.1:8080"},
        {"origin": "https://127.0.0.1"},
        {"origin": "127.0.0.1:7411"},
        {"origin": "file://127.0.0.1:7411"},
        {"origin": "http://127.0.0.1:7411/"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "Same-Origin"},
        {"origin": "http://127.0.0.1:7411", "sec-fetch-site": "cross-site"},
    ],
    ids=str,
)
def test_pages_of_other_sites_are_refused(method: str, path: str, sent: dict[str, str]) -> None:
    """A form, a script or an image is, with whatever method; and nothing invites them with a CORS header."""
    reply = asked(OURS | sent, method, path)
    assert (reply.status, reply.error, reply.taken) == (403, "AccessRefused", 0)
    assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_a_page_of_the_server_itself_is_answered(site: str) -> None:
    """Requests of the own page pass, as do those that somebody typed into the address bar."""
    assert asked(OURS | {"origin": "http://127.0.0.1:7411", "sec-fetch-site": site}).status == 200
    assert asked(OURS | {"origin": "https://db.example.com"}).status == 200


def test_no_websocket_is_opened() -> None:
    """None is as a request, nor as what other servers make of one."""
    assert asked(OURS | {"upgrade": "WebSocket", "connection": "upgrade"}).status == 400
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(Gate(app, RULES, Metrics([]))({"type": "websocket"}, None, send))  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize("path", ["/v1/stores", "/metrics", "/openapi.json", "/nothing", "/health/", "//health"])
@pytest.mark.parametrize(
    "given",
    [
        None, "", "Bearer", "Bearer ", f"Bearer {WRITER[:-1]}", f"Bearer {WRITER}x", f"Bearer {WRITER.upper()}",
        f"Basic {WRITER}", WRITER, f"Bearer {WRITER} {WRITER}", "Bearer " + "é" * 43, f"Bearer\t{WRITER}",
    ],
)  # fmt: skip
def test_without_the_token_nothing_is_told(path: str, given: str | None) -> None:
    """It is refused before the body is read, in the same words whatever was wrong."""
    headers = {"host": OURS["host"]} | ({} if given is None else {"authorization": given})
    reply = asked(headers, "POST", path, body=itertools.repeat(b"x"))
    assert (reply.status, reply.error, reply.taken) == (401, "Unauthorized", 0)
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.body == asked({"host": OURS["host"]}).body
    assert b"behind the # of the URL that `softkv serve` prints" in reply.body


def test_two_tokens_in_one_request_are_refused() -> None:
    """A request with two tokens is refused, even if one of them is right."""
    assert asked([*OURS.items(), ("authorization", f"Bearer {READER}")]).status == 401


@pytest.mark.parametrize("name", ["token", "access_token", "Token", "t%6fken", "x=1&api_key"])
def test_a_token_in_the_url_is_refused(name: str) -> None:
    """A URL with the right token is refused beside the right header, too: URLs are kept in logs and histories."""
    assert asked({"host": OURS["host"]}, query=f"{name}={WRITER}").status == 400
    assert asked(query=f"{name}={WRITER}").status == 400


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their digests are, by the function that is made for it, and all of them whichever was right."""
    compared: list[int] = []

    def seen(left: bytes, right: bytes) -> bool:
        compared.append(len(left) + len(right))
        return left == right

    monkeypatch.setattr(gate, "compare_digest", seen)
    rules = Rules(HOSTS, 80, [digest_of(b"a"), *RULES.writers, digest_of(b"b")], RULES.readers)
    for given in (WRITER, READER, "short", ""):
        compared.clear()
        asked(OURS | {"authorization": f"Bearer {given}"}, rules=rules)
        assert compared == [64] * 4


def test_health_answers_without_a_token_and_says_nothing() -> None:
    """The path /health answers without a token, with nothing, and to the right name alone."""
    for path in ("/health", "/ready"):
        reply = asked({"host": OURS["host"]}, path=path)
        assert (reply.status, reply.body) == (204, b"")


@pytest.mark.parametrize("length", ["16777217", "9" * 15, "9" * 4_000, "-1", "+5", "5, 5", "٥", "1e3", ""])
def test_a_length_that_is_too_large_or_none_is_refused_before_the_body(length: str) -> None:
    """It may be spelled in any way."""
    headers = [*OURS.items(), ("content-length", length.encode().decode("latin-1"))]
    reply = asked(headers, "POST", body=itertools.repeat(b"x"))
    assert (reply.status, reply.taken) == (413 if length.isdigit() and length.isascii() else 400, 0)


def test_two_lengths_are_refused() -> None:
    """One beside chunks is refused, too, of which another program may believe either."""
    twice = [*OURS.items(), ("content-length", "1"), ("content-length", "1")]
    assert asked(twice, "POST").status == 400
    for length in "01":
        assert asked(OURS | {"content-length": length, "transfer-encoding": "chunked"}, "POST").status == 400


def test_a_body_without_end_is_cut_off() -> None:
    """It is after hardly more than may come, whatever the application makes of the end."""
    piece = b"x" * (1 << 20)
    reply = asked(OURS | {"transfer-encoding": "chunked"}, "POST", body=itertools.repeat(piece))
    assert (reply.status, reply.error, reply.taken) == (413, "InputError", 17)

    async def forgiving(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"fine"})

    assert asked(method="POST", body=itertools.repeat(piece), around=forgiving).status == 413


def test_a_body_of_the_largest_size_is_taken() -> None:
    """A body without a length is counted by its bytes, not by its pieces."""
    pieces = [b"x" * (1 << 20)] * 16
    assert asked(OURS | {"content-length": str(16 << 20)}, "POST", body=pieces).body == b"16777216"
    assert asked(OURS | {"transfer-encoding": "chunked"}, "POST", body=[*pieces, b"x"]).status == 413


def test_long_headers_are_refused() -> None:
    """All of them together, also where they came in one piece."""
    assert asked(OURS | {f"x-{number}": "y" * 100 for number in range(200)}).status == 431
    assert asked(query="x" * 20_000).status == 431


def test_every_answer_is_safe_to_show() -> None:
    """Nothing in it is run, sniffed, kept or passed on, also where the application says otherwise."""
    others = [asked({"host": OURS["host"]}, path=path) for path in ("/", "/metrics", "/health")]
    for reply in (asked(), asked({}), asked(OURS | {"origin": "null"}), *others):
        assert reply.headers["cross-origin-opener-policy"] == "same-origin"
        assert reply.headers["cross-origin-resource-policy"] == "same-origin"
        policy = reply.headers["content-security-policy"].split("; ")
        assert {policy[0], policy[-1]} == {"default-src 'none'", "frame-ancestors 'none'"}
        assert len(policy) == 2 or reply is others[0]
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["referrer-policy"] == "no-referrer"


def test_behind_a_proxy_nobody_else_is_answered() -> None:
    """Who reaches the port past the proxy is refused, since nothing was encrypted."""
    rules = Rules(HOSTS, 443, RULES.writers, peers={"10.0.0.7", "127.0.0.1"})
    assert asked(OURS | {"host": "db.example.com"}, rules=rules, client="10.0.0.7").status == 200
    refused = asked(OURS | {"x-forwarded-for": "10.0.0.7"}, rules=rules, client="10.0.0.8")
    assert (refused.status, refused.error) == (403, "AccessRefused")


def test_a_target_that_is_no_path_is_refused() -> None:
    """A whole URL is none, nor is a star."""
    for path in ("http://127.0.0.1:7411/health", "*", ""):
        assert asked(path=path).status == 400


def test_what_nothing_was_prepared_for_is_told_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    """Neither the answer nor the log has what a client may have sent; the log has the place."""

    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("the secret of a client")

    with caplog.at_level("INFO", "softkv"):
        reply = asked(around=failing, query="q=secret")
    assert (reply.status, reply.error) == (500, "ServerError")
    assert b"secret" not in reply.body
    assert "secret" not in caplog.text.replace('raise ValueError("the secret of a client")', "")
    assert "ValueError" in caplog.text
    assert "in failing" in caplog.text


def test_each_request_is_one_line_without_content(caplog: pytest.LogCaptureFixture) -> None:
    """Method, route, status and time; not the path, which may hold names, nor a method that a client made up."""
    with caplog.at_level("INFO", "softkv"):
        asked(path="/v1/secret/items", query="secret=1")
        asked(method="SECRET", path="/metrics")
        asked(path="/health")
    lines = [record.getMessage().rsplit(" ", 2)[0] for record in caplog.records]
    assert lines == ["GET none 200", "other none 200", "GET /health 204"]


def test_metrics_have_no_label_that_clients_choose() -> None:
    """They have none, however many methods and paths clients think of."""
    metrics = Metrics([])
    for number in range(50):
        metrics.count({"method": f"M{number}", "path": f"/{number}"}, 404, 0.002 * number)
    text = metrics.text()
    assert 'softkv_requests_total{method="other",route="none",status="404"} 50' in text
    assert text.count("softkv_requests_total{") == 1
    assert 'softkv_request_seconds_bucket{le="0.01"} 6' in text
    assert 'softkv_request_seconds_bucket{le="+Inf"} 50' in text
    assert "softkv_request_seconds_count 50" in text


def test_the_page_is_for_all_who_may_ask_this_server() -> None:
    """It needs no token and holds nothing of stores; its policy allows its own script and style, and this server."""
    page = asked({"host": "127.0.0.1:7411"}, path="/")
    assert (page.status, page.scope["softkv.route"], page.body) == (200, "/", document(None).encode())
    policy = page.headers["content-security-policy"]
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["cache-control"] == "no-store"
    assert asked({"host": "evil.example"}, path="/").status == 421
    assert asked({"host": "127.0.0.1:7411", "origin": "http://evil.example"}, path="/").status == 403
    assert asked({"host": "127.0.0.1:7411"}, path="/", query=f"token={WRITER}").status == 400
    assert asked({"host": "127.0.0.1:7411"}, path="/", method="POST").status == 401
