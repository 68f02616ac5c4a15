"""What people and files get wrong at the command: a clear error each, and nothing written."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import softkv
from softkv.storage.disk import locks

from .commands import ran

COMMAND = [sys.executable, "-c", "from softkv_cli.main import main; main()"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A small store of labels under texts."""
    with softkv.open(tmp_path / "s", value="label") as db:
        db.add(["a red apple", "a blue car"], ["fruit", "thing"], payloads=[{"n": 1}, None])
    return tmp_path / "s"


def contents(store: Path) -> object:
    """Everything that may not change."""
    with softkv.open(store, "r") as db:
        return db.info().commit, dict(db)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["query", "a fruit", "-k", "0"], 2, "-k"),
        (["query", "a fruit", "-k", "-1"], 2, "-k"),
        (["query", "a", "fruit"], 2, 'Put quotes around it: softkv query "a fruit"'),
        (["compare", "a", "red", "fruit"], 2, 'softkv compare "a red fruit"'),
        (["add", "a pear"], 2, "a VALUE after the KEY, or on stdin"),
        (["query", "a fruit", "-T", "0"], 1, "above 0"),
        (["query", "a fruit", "-T", "-1"], 1, "above 0"),
        (["query", "a fruit", "-T", "nan"], 1, "above 0"),
        (["query", "--vector", "1,2,3"], 1, "width 3"),
        (["query", "a fruit", "--where", '{"n": {"$near": 1}}'], 1, "$near"),
        (["query", "a fruit", "--where", '{"a\\"b": 1}'], 1, "no item matches"),
        (["query", "a fruit", "--where", '{"\'; DROP TABLE contents": 1}'], 1, "no item matches"),
        (["query", "a fruit", "--where", '{"$n": 1}'], 1, "$n"),
        (["add", "a key", "a label", "--vector", "1,2,3"], 1, "width 3"),
        (["add", "a red apple", "a label"], 1, "--replace"),
    ],
)
def test_a_mistake_is_named_and_changes_nothing(store: Path, arguments: list[str], code: int, said: str) -> None:
    """A few lines on stderr name it, with nothing on stdout."""
    before = contents(store)
    done = ran(*arguments, "--db", store)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert "Traceback" not in done.err
    assert contents(store) == before


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.csv", b"", "empty"),
        ("binary.csv", bytes(range(256)) * 20, "binary.csv"),
        ("unknown.csv", b"name,kind\na,b\n", "which column|there is no column"),
        ("deep.json", b"[" * 10_000 + b"]" * 10_000, "deep.json"),
        ("nan.jsonl", b'{"key": "a", "value": NaN}\n', "nan.jsonl:1"),
        ("twice.csv", b"key,value\nx,fruit\nx,thing\n", "twice.csv:3"),
    ],
)
def test_a_file_that_is_none_is_named(store: Path, tmp_path: Path, name: str, content: bytes, said: str) -> None:
    """Its name is told, and the line where it has lines."""
    (tmp_path / name).write_bytes(content)
    before = contents(store)
    named = ["--value", "label"] if name == "unknown.csv" else []
    done = ran("add", "-i", tmp_path / name, *named, "--db", store)
    assert done.code == 1
    assert any(part in done.err for part in said.split("|"))
    assert "Traceback" not in done.err
    assert contents(store) == before


@pytest.mark.slow
def test_a_line_of_a_gigabyte_is_refused_by_its_length(store: Path, tmp_path: Path) -> None:
    """It is never held in memory."""
    with open(tmp_path / "long.csv", "wb") as file:
        file.write(b"key,value\n")
        file.truncate(1 << 30)  # NULs to its end, which take no room on the disk
    before = contents(store)
    script = (
        "from softkv_cli.main import main\nfrom tests.memory import peak\n"
        "try: main()\nexcept SystemExit as end: print(end.code)\nprint(peak())"
    )
    command = [sys.executable, "-c", script, "add", "-i", str(tmp_path / "long.csv"), "--db", str(store)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    code, used = map(int, done.stdout.split())
    assert code == 1
    assert "long.csv" in done.stderr
    assert used < 1 << 29
    assert contents(store) == before


def test_a_locked_store_says_who_writes(store: Path) -> None:
    """It says so at once, with what still works; reading does."""
    with softkv.open(store):
        done = ran("add", "a new key", "fruit", "--db", store)
        assert done.code == 1
        assert "reading works meanwhile" in done.err
        assert ran("query", "a fruit", "--db", store).code == 0


WRITING: list[list[object]] = [
    ["add", "a new key", "fruit"],
    ["delete", "a red apple"],
    ["tune"],
    ["fit"],
    ["index", "build"],
    ["index", "drop"],
    ["compact"],
    ["reembed", "-m", "static"],
]


@pytest.mark.parametrize("command", WRITING, ids=lambda command: " ".join(map(str, command[:2])))
def test_every_command_that_writes_waits_as_long_as_it_is_told(
    store: Path, command: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not by default, which the refusal names; else until the time is over, or the other one is done."""
    before = contents(store)
    with softkv.open(store) as other:
        for more in ([], ["--wait", "0"], ["--wait", "0.01"]):
            done = ran(*command, *more, "--db", store)
            assert (done.code, done.out) == (1, "")
            assert f"by pid {os.getpid()}" in done.err
            assert "as --wait SECONDS does" in done.err
        assert contents(store) == before
        paused: list[float] = []
        monkeypatch.setattr(locks.time, "sleep", lambda seconds: (paused.append(seconds), other.close()))
        done = ran(*command, "--wait", "60", "--db", store)
        assert "is open for writing" not in done.err
        assert paused.count(locks.PAUSE) == 1  # a look at how busy the processors are pauses for less
    for wrong in ("-1", "nan", "soon"):
        done = ran(*command, "--wait", wrong, "--db", store)
        assert (done.code, done.out) == (2, "")
        assert "Invalid value for '--wait'" in done.err


READ_ONLY = """
set -e
mount -t tmpfs softkv-test "$1" && cp -R "$2" "$1/s" && mount -o remount,ro "$1"
"""
UNSHARED = ["unshare", "-rm", "sh", "-c"]


def _mounts() -> bool:
    """Whether a file system can be mounted here, which only the mounting process sees."""
    with suppress(OSError):
        return subprocess.run([*UNSHARED, "mount -t tmpfs softkv-test /mnt"], capture_output=True).returncode == 0
    return False


@pytest.mark.skipif(not _mounts(), reason="nothing can be mounted here")
def test_a_read_only_mount_is_called_one(store: Path, tmp_path: Path) -> None:
    """Every command that writes says so, with what to do; those that read work as ever."""
    mount = tmp_path / "mount"
    mount.mkdir()
    script = (
        "import json, sys; from tests.commands import ran; print(json.dumps([ran(*x) for x in json.load(sys.stdin)]))"
    )
    reading = [["query", "a fruit"], ["compare", "a fruit"], ["get", "a red apple"], ["list"], ["info"], ["check"]]
    reading += [["path"], ["index", "status"], ["export", str(tmp_path / "a.jsonl")]]
    place = ["--db", str(mount / "s")]
    writing = [[*map(str, one), *place] for one in WRITING]
    writing += [["add", "a", "1", "--db", str(mount / "new")], ["export", str(mount / "a.jsonl"), *place]]
    given = json.dumps([[*one, *place] for one in reading] + writing)
    command = [*UNSHARED, READ_ONLY + 'exec "$3" -c "$4"', "sh", mount, store, sys.executable, script]
    done = subprocess.run(command, input=given, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert [code for code, _, _ in answers[: len(reading)]] == [0] * len(reading)
    for code, out, said in answers[len(reading) :]:
        assert (code, out) == (1, "")
        assert "Read-only file system. A store there can only be read" in said
        assert "mode 'r'" not in said


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_directory_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    """A message names a directory that may not be written, which is left as it is."""
    (tmp_path / "fixed").mkdir(mode=0o500)
    done = ran("add", "a key", "fruit", "--db", tmp_path / "fixed" / "s")
    assert done.code == 1
    assert str(tmp_path / "fixed") in done.err


@pytest.mark.slow
def test_a_closed_pipe_is_no_error_to_speak_of(tmp_path: Path) -> None:
    """`softkv list | head -1` prints its line and nothing else."""
    with softkv.open(tmp_path / "s", compatibility="dot") as db:
        db.add([f"item {number}" for number in range(20_000)], [0.0] * 20_000, vectors=[[1.0, 2.0]] * 20_000)
    command = [*COMMAND, "list", "--db", str(tmp_path / "s")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["key"] == "item 0"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


@pytest.mark.parametrize("command", [["query", "a fruit", "--explain"], ["compare", "a fruit"], ["list"], ["info"]])
def test_a_terminal_of_twenty_columns_is_wide_enough(
    store: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it shows is ugly, but all of it, and no error."""
    done = ran(*command, "--db", store, terminal=True, columns=20)
    assert (done.code, done.err) == (0, "")
    assert done.out


@pytest.mark.slow
def test_a_query_of_a_store_with_the_bundled_model_loads_nothing_heavy(store: Path) -> None:
    """Torch, sentence_transformers and faiss are not loaded."""
    script = (
        "import sys\nfrom softkv_cli.main import main\ntry: main()\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'sentence_transformers', 'faiss', 'transformers') if name in sys.modules])"
    )
    command = [sys.executable, "-c", script, "query", "a fruit", "--plain", "--db", str(store)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["fruit", "[]"]
