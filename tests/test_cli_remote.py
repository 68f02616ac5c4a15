"""Commands on stores that are served: by their URL, or through the file SERVER by themselves."""

import csv
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import softkv

from .commands import ran
from .servers import LONGEST, Running, films, served

FILMS = [(f"Film {number} of gold", number % 5, 1990 + number) for number in range(30)]
READING = [
    ["query", "gold"],
    ["query", "gold", "--explain", "-n", "3"],
    ["query", "gold", "--hard", "--csv"],
    ["query", "gold", "--plain", "-k", "3", "-T", "0.1"],
    ["query", "gold", "--where", '{"year": {"$gte": 2010}}', "--json"],
    ["query", "gold", "--where", '{"year": {"$near": 2010}}'],
    ["query", "gold", "-T", "-1"],
    ["query", "-"],
    ["query", "--vector", "1,2"],
    ["compare", "gold"],
    ["get", "Film 3 of gold", "Film 4 of gold"],
    ["get", "No film"],
    ["list", "--limit", "2", "--skip", "3"],
    ["list", "--where", '{"year": 2000}'],
    ["index", "status"],
]


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A server of the store `films`, whose token is in the environment; `copy` is a copy of it."""
    with (tmp_path / "films.csv").open("w") as file:
        csv.writer(file).writerows([("title", "stars", "year"), *FILMS])
    for name in ("films", "copy"):
        added = ran(
            "add", "-i", tmp_path / "films.csv", "--payload", "year", "--value", "stars", "--db", tmp_path / name
        )
        assert added.code == 0, added.err
    with served(tmp_path / "films", tmp_path / "copy") as server:
        monkeypatch.setenv("SOFTKV_TOKEN", server.token)
        yield server


def url_of(server: Running, name: str = "films") -> str:
    """Where a store is served."""
    return f"http://127.0.0.1:{server.port}/{name}"


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_read_through_a_server_is_what_is_read_from_the_path(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    """It is equal to the last byte, on a terminal and piped, errors included."""
    from softkv_cli import served as through

    for command in READING:
        by_url = ran(*command, "--db", url_of(running), stdin="gold\nfilm\n", terminal=terminal)
        by_itself = ran(*command, "--db", tmp_path / "films", stdin="gold\nfilm\n", terminal=terminal)
        with monkeypatch.context() as alone:
            alone.setattr(through, "asked", lambda *_: None)
            by_path = ran(*command, "--db", tmp_path / "films", stdin="gold\nfilm\n", terminal=terminal)
        assert by_itself == by_path
        assert by_url.code == by_path.code
        assert (by_url.out, by_url.err.replace("films", "")) == (
            by_path.out,
            by_path.err.replace(f"{tmp_path}/films", ""),
        )


def test_without_the_token_it_is_said_where_it_stands_and_goes(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words of the shell say it, where the variable is the only way; nothing is said of headers."""
    for token, shown in (("", "none"), ("x" * 43, "one that it does not know")):
        monkeypatch.setenv("SOFTKV_TOKEN", token)
        done = ran("query", "gold", "--db", url_of(running))
        assert (done.code, done.out) == (1, "")
        assert f"was shown {shown}. Give what stands behind the #" in done.err
        assert done.err.endswith("in the variable SOFTKV_TOKEN.\n")
        assert "token=" not in done.err


@pytest.mark.parametrize("kind", ["label", "text", "vector"])
def test_answers_of_every_kind_are_printed_as_from_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Distributions, texts and vectors, in every form."""
    from softkv_cli import served as through

    values = {
        "label": ["gold", "sea", "sea"],
        "text": ["a desert", "a coast", "a desert"],
        "vector": [[1, 2], [3, 4], [5, 6]],
    }
    with softkv.open(tmp_path / "s", value=kind) as db:
        db.add(["a treasure", "two boats", "the rain"], values[kind])
    with served(tmp_path / "s"):
        for form in (["--json"], ["--csv"], ["--plain"], ["--json", "--explain"], ["--hard"]):
            command = ["query", "a boat", *form, "--db", tmp_path / "s"]
            found = ran(*command, terminal=form == ["--hard"])
            with monkeypatch.context() as alone:
                alone.setattr(through, "asked", lambda *_: None)
                assert found == ran(*command, terminal=form == ["--hard"])


@pytest.mark.parametrize("way", ["url", "path"])
def test_commands_write_through_a_server(running: Running, tmp_path: Path, way: str) -> None:
    """The server holds the lock: nobody else could write."""
    store = url_of(running) if way == "url" else tmp_path / "films"

    def told(*command: object, code: int = 0) -> str:
        done = ran(*command, "--db", store)
        assert done.code == code, done
        return done.err + done.out

    assert told("add", "New", 4, "--batch", "one") == told("add", "New", 4, "--batch", "one") == "added 1\n"
    assert "use --replace" in told("add", "New", 4, code=1)
    assert told("set", 7, "New") == "changed 1\n"
    assert told("get", "New", "--plain") == "7.0\n"
    assert told("delete", "New") == "deleted 1\n"
    table = ("add", "-i", tmp_path / "films.csv", "--payload", "year", "--value", "stars")
    assert "--skip 30" in told(*table, code=1)
    assert (
        told(*table, "--replace", "--batch", "b")
        == told(*table, "--replace", "--batch", "b")
        == "added 0, replaced 30\n"
    )
    assert "built in" in told("index", "build")
    assert "dropped" in told("index", "drop")
    assert "remembered" in told("tune", "--json")
    told("fit", "--rank", "2")
    told("fit", "--drop")
    assert "dead rows" in told("compact")
    assert ": ok, commit" in told("check")
    assert told("export", tmp_path / "out.jsonl") == f"exported 30 items to {tmp_path}/out.jsonl\n"
    assert "no model" in told("reembed", code=1)
    assert "kind 'number'" in told("add", "New", "x", "--kind", "label", code=1)


@pytest.mark.parametrize(
    "command",
    [["restore", "backup"], ["import", "file.jsonl"], ["check", "--repair-to", "new"]],
    ids=lambda one: one[0],
)
def test_what_works_on_files_says_so(running: Running, command: list[str]) -> None:
    """It is refused in words, and no file is made that is called like a URL."""
    done = ran(*command, "--db", url_of(running))
    assert (done.code, "by its path" in done.err) == (2, True)
    assert not Path("http:").exists()


def test_a_server_copies_into_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup by a URL names no directory; by a path it has to, also where the store is served."""
    films(tmp_path / "films")
    (tmp_path / "backups").mkdir()
    with served(tmp_path / "films", options=("--backups", tmp_path / "backups")) as server:
        monkeypatch.setenv("SOFTKV_TOKEN", server.token)
        done = ran("backup", "--db", url_of(server))
        assert (done.code, done.err.startswith("2 items as of commit 2 in films; ")) == (0, True), done
        done = ran("backup", tmp_path / "elsewhere", "--db", url_of(server))
        assert (done.code, "Leave out yours" in done.err) == (1, True)
        done = ran("backup", "--db", tmp_path / "films")
        assert (done.code, "name the directory" in done.err) == (2, True)
        assert ran("backup", tmp_path / "mine", "--db", tmp_path / "films").code == 0
    assert not (tmp_path / "elsewhere").exists()
    for copy in (tmp_path / "backups" / "films", tmp_path / "mine"):
        with softkv.open(copy, "r") as db:
            assert db["k1"] == 1.0


def test_a_token_that_is_missing_is_asked_for(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is given a URL asks for it; a path needs none."""
    monkeypatch.delenv("SOFTKV_TOKEN")
    done = ran("query", "gold", "--db", url_of(running))
    assert (done.code, "wants a token, and was shown none" in done.err) == (1, True)
    done = ran("query", "gold", "--db", f"{url_of(running)}#{running.token}")
    assert (done.code, "SOFTKV_TOKEN" in done.err, running.token in done.err) == (1, True, False)


@pytest.mark.parametrize("url", ["http://127.0.0.1:abc/films", "http://[abc/films"])
def test_an_odd_url_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short way to ask a server leaves it to the handle to say so."""
    monkeypatch.setenv("SOFTKV_TOKEN", "a" * 30)
    done = ran("query", "a boat", "--db", url)
    assert done.code == 1
    assert "odd host or port" in done.err


def test_what_a_killed_server_left_is_not_believed(running: Running, tmp_path: Path) -> None:
    """Commands read and write the path again."""
    running.process.kill()
    running.process.wait(LONGEST)
    assert (tmp_path / "films" / "SERVER").exists()
    assert ran("add", "New", 4, "--db", tmp_path / "films").code == 0
    assert ran("get", "New", "--plain", "--db", tmp_path / "films").out == "4.0\n"


@pytest.mark.slow
def test_two_shells_write_at_the_same_time_and_lose_nothing(running: Running, tmp_path: Path) -> None:
    """One by the path and one by the URL, each a file of its own."""
    commands = []
    for name, store in (("a", str(tmp_path / "films")), ("b", url_of(running))):
        lines = [f"{name} {number},{number}" for number in range(300)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["title,stars", *lines]))
        given = ["add", "-i", str(tmp_path / f"{name}.csv"), "--db", store, "--value", "stars"]
        started = [sys.executable, "-c", "from softkv_cli.main import main; main()", *given]
        commands.append(subprocess.Popen(started, stderr=subprocess.PIPE, text=True))
    for command in commands:
        _, told = command.communicate(timeout=LONGEST)
        assert told == "added 300\n"
    with softkv.open(url_of(running)) as db:
        assert len(db) == 630
        assert {f"a {number}" for number in range(300)} | {f"b {number}" for number in range(300)} <= set(db)


@pytest.mark.slow
def test_a_question_to_a_server_loads_no_numpy(running: Running, tmp_path: Path) -> None:
    """What takes longest of a short command is to load the library, and it is left out."""
    script = """
import sys
from softkv_cli.main import softkv
softkv(["query", "gold", "--db", sys.argv[1]], standalone_mode=False)
print(*[name for name in ("numpy", "sqlite3", "httpx", "tokenizers", "rich") if name in sys.modules], file=sys.stderr)
"""
    for store in (url_of(running), str(tmp_path / "films")):
        done = subprocess.run([sys.executable, "-c", script, store], capture_output=True, text=True, check=True)
        assert (done.stderr, '"contributors"' in done.stdout) == ("\n", True)
