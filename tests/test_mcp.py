"""`softkv mcp`: the protocol, stores that are there or not, several clients at once, and servers that die."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from jsonschema import Draft202012Validator
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

import softkv
from softkv.storage.disk.announced import SERVER, announced
from tests.servers import LONGEST, eventually, films, served
from tests.windows import COMMAND, Window, client, server_of, whole, window

pytestmark = pytest.mark.slow
TOOLS = ["remember", "recall", "correct", "forget", "list"]


@pytest.fixture
def errors(tmp_path: Path) -> Iterator[Path]:
    """What clients and servers tell on stderr, in which no traceback may be."""
    yield tmp_path / "errors"
    assert "Traceback" not in (tmp_path / "errors").read_text()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A store that is not there yet, and whole at the end."""
    with whole(tmp_path / "m.softkv") as path:
        yield path


@pytest.mark.parametrize(
    ("mode", "version"), [("legacy", HANDSHAKE_PROTOCOL_VERSIONS), ("auto", MODERN_PROTOCOL_VERSIONS)]
)
def test_an_agent_remembers_and_recalls(store: Path, errors: Path, mode: str, version: tuple[str, ...]) -> None:
    """The client of the SDK asks, with the handshake and without; results are as their schemas say."""

    async def use() -> None:
        async with client(store, errors=errors, mode=mode) as agent:
            assert agent.protocol_version == version[-1]
            assert [tool.name for tool in (await agent.list_tools()).tools] == TOOLS

            async def call(name: str, **arguments: Any) -> Any:
                found = await agent.call_tool(name, arguments)
                assert not found.is_error, found.content
                assert json.loads(found.content[0].text) == found.structured_content
                return found.structured_content

            assert (await call("recall", query="tea"))["known"] == "no"
            key = (await call("remember", text="The user drinks tea", payload={"about": "user"}))["key"]
            await call("remember", text="make release", key="releasing")
            found = await call("recall", query="what does the user drink?", limit=1)
            assert (found["known"], found["memories"][0]["key"]) == ("unsure", key)
            assert (await call("correct", key=key, text="The user drinks water"))["before"] == "The user drinks tea"
            assert (await call("list", where={"about": "user"}))["memories"][0]["text"] == "The user drinks water"
            assert await call("forget", keys=[key]) == {"forgotten": 1}
            assert len((await call("list"))["memories"]) == 1

    anyio.run(use)


def test_the_configuration_of_the_page_works(tmp_path: Path) -> None:
    """Clients that know nothing of shells, or of what ~ means to them, take it as it stands there."""
    page = (Path(__file__).parent.parent / "docs" / "doors.md").read_text(encoding="utf-8")
    block = next(one for one in re.findall(r"```json\n(.*?)```", page, re.DOTALL) if "mcpServers" in one)
    commands = os.pathsep.join([str(Path(COMMAND).parent), os.environ["PATH"]])
    told = json.loads(block)["mcpServers"]["memory"] | {"env": {"HOME": str(tmp_path), "PATH": commands}}

    async def use() -> None:
        async with Client(stdio_client(StdioServerParameters(**told))) as agent:
            assert not (await agent.call_tool("remember", {"text": "The user drinks tea"})).is_error

    with whole(tmp_path / "memories.softkv") as store:
        anyio.run(use)
        assert (store / SERVER).exists()


@pytest.mark.parametrize("version", HANDSHAKE_PROTOCOL_VERSIONS)
def test_each_version_of_the_protocol_is_spoken(tmp_path: Path, errors: Path, version: str) -> None:
    """The one asked for is spoken; the store is not touched before a tool is called."""
    talking = Window(tmp_path / "none", errors=errors)
    try:
        found = talking.greet(version)
        assert found["protocolVersion"] == version
        assert found["serverInfo"]["name"] == "softkv"
        assert "never an instruction" in found["instructions"]
        assert found["capabilities"].keys() <= {"tools", "experimental"}
        assert talking.ask("ping") == {}
        assert [tool["name"] for tool in talking.ask("tools/list")["tools"]] == TOOLS
        assert talking.end() == 0
    finally:
        talking.process.kill()
        assert talking.process.stdout is not None
        talking.process.stdout.close()
    assert not (tmp_path / "none").exists()


def test_tools_say_what_they_take_and_return(tmp_path: Path, errors: Path) -> None:
    """Their schemas are right and describe each, without a path, a model or an embedder among them."""
    with window(tmp_path / "none", errors=errors) as agent:
        tools = {tool["name"]: tool for tool in agent.ask("tools/list")["tools"]}
    for tool in tools.values():
        for schema in (tool["inputSchema"], tool["outputSchema"]):
            Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object"
        assert len(tool["description"]) > 50
        assert tool["inputSchema"]["additionalProperties"] is False
        words = json.dumps(tool).lower()
        assert not [word for word in ("path", "file", "directory", "model", "embed") if word in words]
    reading = {name for name, tool in tools.items() if tool["annotations"]["readOnlyHint"]}
    changing = {name for name, tool in tools.items() if tool["annotations"]["destructiveHint"]}
    assert (reading, changing) == ({"recall", "list"}, {"correct", "forget"})


def test_nothing_but_the_protocol_is_on_stdout(store: Path, errors: Path) -> None:
    """Whatever is sent, each line is a message; a client that goes away is no error."""
    with window(store, errors=errors) as agent:
        for line in (b"nonsense", b"[]", b'{"jsonrpc": "2.0"}', b"\xff\xfe", b"[" * 10_000, b'{"id": 1}'):
            agent.say(line)
        agent.call("remember", text="The user drinks tea")  # numbers in text values, hints and the like go to stderr
        found = agent.ask("nonsense/method")
        assert found["code"] == -32601
        assert agent.end() == 0
        assert all(json.loads(line)["jsonrpc"] == "2.0" for line in agent.lines)


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("recall", {}, "query: Missing required argument"),
        ("recall", {"query": 3}, "query: Input should be a valid string"),
        ("recall", {"query": "a", "path": "/etc/passwd"}, "path: Unexpected keyword argument"),
        ("recall", {"query": "tea", "limit": 0}, "limit: Input should be greater than or equal to 1"),
        ("recall", {"query": "tea", "where": {"a": {"$regex": "x"}}}, "expected one of the operators"),
        ("recall", {"query": "🦀"}, "Say it in other words"),
        ("list", {"budget": 10**9}, "budget: Input should be less than or equal to 20000"),
        ("list", {"start": -1}, "start: Input should be greater than or equal to 0"),
        ("remember", {"text": ""}, "text: String should have at least 1 character"),
        ("remember", {"text": "tea", "key": "#1"}, "starts with '#'"),
        ("remember", {"text": "tea", "key": "a\0b"}, "NUL"),
        ("remember", {"text": "tea", "payload": [1]}, "payload: Input should be a valid dictionary"),
        ("remember", {"text": "tea", "payload": {"x": float("nan")}}, "payload"),
        ("remember", {"text": "x" * 100_001}, "text: String should have at most 100000 characters"),
        ("remember", {"text": "tea", "found_by": "x" * 100_001}, "found_by: String should have at most 100000"),
        ("remember", {"text": "tea", "payload": {"x": "x" * (1 << 20)}}, "1,048,576 is the most"),
        ("recall", {"query": "tea", "x" * 100_000: 1}, "xxx"),
        ("correct", {"key": "../../etc/passwd", "text": "tea"}, "no item has the key"),
        ("forget", {"keys": []}, "keys: List should have at least 1 item"),
        ("forget", {"keys": ["a", 3]}, "keys.1: Input should be a valid string"),
    ],
)
def test_mistakes_are_told_to_the_model(shared: Window, tool: str, arguments: dict[str, Any], words: str) -> None:
    """They are errors of the tool, in words that say what to do."""
    told = shared.call(tool, **arguments)
    assert isinstance(told, str), told
    assert words in told
    assert len(told) <= 500
    assert "softkv/" not in told


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Window]:
    """A client of a store that does nothing but make mistakes."""
    folder = tmp_path_factory.mktemp("mistakes")
    with whole(folder / "m.softkv") as path, window(path, errors=folder / "errors") as agent:
        agent.call("remember", text="The user drinks tea")
        yield agent
        assert len(agent.call("list")["memories"]) == 1
        assert "Traceback" not in (folder / "errors").read_text()
        assert sorted(one.name for one in folder.iterdir()) == ["errors", "m.softkv"]


def test_deep_json_is_refused(shared: Window) -> None:
    """JSON nested 5,000 deep is refused, and the next call is answered."""
    deep = b'{"a":' * 5000 + b"1" + b"}" * 5000
    shared.say(
        b'{"jsonrpc": "2.0", "id": "deep", "method": "tools/call", "params": {"name": "remember", '
        b'"arguments": {"text": "tea", "payload": ' + deep + b"}}}"
    )
    assert len(shared.call("list")["memories"]) == 1 or shared.hear()


@pytest.mark.parametrize(
    "arguments", ['{"text": "tea \\ud800"}', '{"text": "tea", "payload": ' + "[" * 300 + "]" * 300 + "}"]
)
def test_a_request_that_cannot_be_read_is_answered(shared: Window, arguments: str) -> None:
    """The answer has its id, so that nobody waits for it: half a character of UTF-16, and lists in lists."""
    words = '{"jsonrpc": "2.0", "id": "odd", "method": "tools/call", "params": {"name": "remember", "arguments": '
    shared.say((words + arguments + "}}").encode())
    found = shared.hear()
    assert (found["id"], found["error"]["code"]) == ("odd", -32700)
    shared.say((words + arguments + "}}").replace('"odd"', '"\\ud800"').encode())  # an id that cannot be sent back
    assert len(shared.call("list")["memories"]) == 1


def test_a_tool_that_is_none_is_an_error_of_the_protocol(shared: Window, tmp_path: Path, errors: Path) -> None:
    """The error is the one that the protocol has for it."""
    found = shared.ask("tools/call", name="drop_everything", arguments={})
    assert found["code"] == -32602
    assert "remember, recall" in found["message"]

    async def use() -> None:
        async with client(tmp_path / "none", errors=errors) as agent:
            with pytest.raises(MCPError, match="there is no tool"):
                await agent.call_tool("drop_everything", {})

    anyio.run(use)


def test_the_server_is_for_this_user_on_this_machine(store: Path, errors: Path) -> None:
    """It is on the loopback, with a token that stands in a file of the user alone, in no argument or answer."""
    with window(store, errors=errors) as agent:
        agent.call("remember", text="The user drinks tea")
        found = server_of(store)
        assert found.url.startswith("http://127.0.0.1:")
        assert stat.S_IMODE((store / SERVER).stat().st_mode) == 0o600
        for pid in (found.pid, agent.process.pid):
            assert found.token.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
            assert found.token.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        assert found.token.encode() not in b"".join(agent.lines)
        assert Path(f"/proc/{found.pid}/cwd").readlink() == Path("/")
    assert found.token not in errors.read_text()


def test_modules_of_the_directory_that_a_client_runs_in_are_not_loaded(store: Path, errors: Path) -> None:
    """The directory may be a project of somebody else."""
    project = store.parent / "project"
    for name in ("softkv", "softkv_cli", "fastapi", "uvicorn", "json", "logging", "encodings"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text("open('loaded', 'w').close()\nraise SystemExit(7)\n")
    with window(store, errors=errors, cwd=project) as agent:
        assert agent.call("remember", text="The user drinks tea")["new"]
    assert not (project / "loaded").exists()


@pytest.mark.ci
def test_two_windows_that_begin_at_once_share_a_server(store: Path, errors: Path) -> None:
    """Each finds what the other has remembered, and whatever was acknowledged is there."""

    async def use() -> None:
        async with client(store, errors=errors) as first, client(store, errors=errors) as second:

            async def remember(agent: Any, name: str) -> None:
                for place in range(20):
                    found = await agent.call_tool(
                        "remember", {"text": f"{name} likes tea {place}", "key": f"{name}{place}"}
                    )
                    assert not found.is_error, found.content

            async with anyio.create_task_group() as both:
                both.start_soon(remember, first, "Anna")
                both.start_soon(remember, second, "Hugo")
            for agent, other in ((first, "Hugo"), (second, "Anna")):
                found = await agent.call_tool("recall", {"query": f"{other} likes tea 7", "limit": 50})
                assert other in found.content[0].text
                listed = (await agent.call_tool("list", {"budget": 20000})).structured_content
                assert listed is not None
                assert len(listed["memories"]) == 40

    anyio.run(use)


@pytest.mark.ci
def test_a_server_outlives_the_client_that_started_it(store: Path, errors: Path) -> None:
    """That one may end in any way; the other notices nothing."""
    with window(store, errors=errors, start_new_session=True) as first, window(store, errors=errors) as second:
        first.call("remember", text="The user drinks tea", key="drink")
        server = server_of(store)
        assert second.call("list")["memories"][0]["key"] == "drink"
        os.killpg(first.process.pid, signal.SIGKILL)
        first.process.wait(LONGEST)
        assert second.call("remember", text="The user eats bread", key="food")["new"]
        assert server_of(store) == server


@pytest.mark.ci
def test_a_server_that_is_killed_is_replaced(store: Path, errors: Path) -> None:
    """What it left behind misleads nobody, and what it has acknowledged is there."""
    with window(store, errors=errors) as first, window(store, errors=errors) as second:
        assert first.call("remember", text="The user drinks tea", key="drink")["new"]
        assert second.call("list")["more"] == 0
        for agent in (first, second):
            former = server_of(store)
            os.kill(former.pid, signal.SIGKILL)
            assert eventually(lambda: announced(str(store)) is None)
            assert (store / SERVER).exists()
            assert agent.call("recall", query="what does the user drink?")["memories"][0]["key"] == "drink"
            assert server_of(store) != former
        assert first.call("list") == second.call("list")


@pytest.mark.ci
def test_servers_that_die_lose_and_double_nothing(store: Path, errors: Path) -> None:
    """Two clients remember meanwhile; each is told of each memory that it is there, and it is, once."""
    with window(store, errors=errors) as first, window(store, errors=errors) as second:
        told: dict[str, Any] = {}

        def remember(agent: Window, name: str) -> None:
            for place in range(30):
                told[f"{name}{place}"] = agent.call("remember", text=f"{name} drinks tea {place}", key=f"{name}{place}")

        threads = [threading.Thread(target=remember, args=one) for one in ((first, "Anna"), (second, "Hugo"))]
        for one in threads:
            one.start()
        killed = 0
        for enough in (8, 25, 45):
            assert eventually(lambda enough=enough: len(told) >= enough and announced(str(store)) is not None)
            os.kill(server_of(store).pid, signal.SIGKILL)
            killed += 1
        for one in threads:
            one.join(3 * LONGEST)
            assert not one.is_alive()
        assert (killed, len(told)) == (3, 60)
        assert all(isinstance(one, dict) and one["new"] for one in told.values()), told
        found = first.call("list", budget=20_000)["memories"]
        assert sorted(one["key"] for one in found) == sorted(told)


@pytest.mark.ci
def test_a_server_that_is_not_asked_ends(store: Path, errors: Path) -> None:
    """A server that nobody asks ends, and is started again when somebody does."""
    with window(store, "--idle-end", "1", errors=errors) as agent:
        agent.call("remember", text="The user drinks tea", key="drink")
        former = server_of(store)
        assert eventually(lambda: not (store / SERVER).exists())
        assert agent.call("list")["memories"][0]["key"] == "drink"
        assert server_of(store) != former


@pytest.mark.ci
def test_a_store_that_somebody_else_writes_to_is_named(store: Path, errors: Path) -> None:
    """The words say who it is, without the path; once it is free, it is used."""
    with window(store, errors=errors) as agent:
        with softkv.open(store, value="text") as db:
            db["drink"] = "The user drinks tea"
            told = agent.call("recall", query="tea")
            assert isinstance(told, str)
            assert f"m.softkv is open for writing by pid {os.getpid()}" in told
            assert str(store.parent) not in told
        assert agent.call("recall", query="tea")["memories"][0]["key"] == "drink"


@pytest.mark.ci
def test_what_holds_no_texts_is_refused(tmp_path: Path, errors: Path) -> None:
    """Numbers, what is no store, and what no server can name; nothing is changed."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    for name, words in (
        (
            films(tmp_path / "numbers").name,
            "expected a store of texts, or one that is not there yet, got one of kind 'num",
        ),
        ("other", "not a store"),
        ("a b", "Rename it"),
    ):
        with window(tmp_path / name, errors=errors) as agent:
            assert words in agent.call("remember", text="The user drinks tea")
        server = announced(str(tmp_path / name))
        assert (server is not None) == (name == "numbers")
        if server is not None:
            os.kill(server.pid, signal.SIGTERM)
            assert eventually(lambda name=name: announced(str(tmp_path / name)) is None)


@pytest.mark.ci
def test_errors_do_not_say_where_a_store_is(tmp_path: Path, errors: Path) -> None:
    """They name no path and no directory, whether it cannot be made or not be served."""
    (tmp_path / "file").touch()
    for store in (tmp_path / "none" / "m", tmp_path / "file", Path("/proc/m.softkv")):
        with window(store, errors=errors) as agent:
            told = agent.call("remember", text="The user drinks tea")
        assert isinstance(told, str)
        assert str(store.parent) not in told
        assert store.name in told


@pytest.mark.ci
def test_an_interrupt_ends_a_client_and_no_server(store: Path, errors: Path) -> None:
    """It ends at once, while it waits for the next line; Ctrl-C reaches all processes of the group."""
    with window(store, errors=errors, start_new_session=True) as agent:
        agent.call("remember", text="The user drinks tea", key="drink")
        server = server_of(store)
        os.killpg(agent.process.pid, signal.SIGINT)
        assert agent.process.wait(LONGEST) == -signal.SIGINT
    with window(store, errors=errors) as agent:
        assert agent.call("list")["memories"][0]["key"] == "drink"
        assert server_of(store) == server


@pytest.mark.ci
def test_a_store_is_reached_by_its_url(tmp_path: Path, errors: Path) -> None:
    """The environment has the token; that of a reader reads, a wrong one is told."""
    with softkv.open(tmp_path / "m", value="text") as db:
        db["drink"] = "The user drinks tea"
    tokens = tmp_path / "tokens"
    tokens.write_text("r" * 40)
    tokens.chmod(0o600)
    with served(tmp_path / "m", options=("--reader-token-file", tokens)) as server:
        url = f"http://127.0.0.1:{server.port}/m"
        for token, words in ((server.token, None), ("r" * 40, "may only read"), ("wrong", "wants a token")):
            with window(url, errors=errors, env={**os.environ, "SOFTKV_TOKEN": token}) as agent:
                found = agent.call("recall", query="tea")
                assert (words in found) if token == "wrong" else (found["memories"][0]["key"] == "drink")
                told = agent.call("remember", text="The user eats bread", key="food")
                assert told["new"] if words is None else words in told
        server.end()
        with window(url, errors=errors, env={**os.environ, "SOFTKV_TOKEN": server.token}) as agent:
            assert "no answer from" in agent.call("list")


def test_a_client_does_not_wait_for_what_asks_the_store() -> None:
    """The list of tools needs no other library than that of the protocol, and neither the database nor its handles."""
    unwanted = ("torch", "faiss", "sklearn", "sqlalchemy", "rich", "pyarrow", "softkv.database", "softkv.doors.remote")
    script = f"import sys, softkv.doors.mcp.tools\nprint(*[name for name in {unwanted!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_what_is_not_installed_is_said_at_once(tmp_path: Path) -> None:
    """What to install is told, and nothing on stdout."""
    script = (
        "import sys; sys.modules['mcp'] = None\n"
        "from softkv_cli.main import main\nsys.argv = ['softkv', *sys.argv[1:]]\nmain()"
    )
    command = [sys.executable, "-c", script, "mcp", "--db", str(tmp_path / "m")]
    run = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert (run.returncode, run.stdout) == (1, "")
    assert "softkv mcp needs mcp, which is not installed: pip install 'softkv[mcp]'" in run.stderr
