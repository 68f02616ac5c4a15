"""What all tests share: options for the tests of CI and the long versions, markers, the seed that is printed, turns.

Does not choose in how many processes tests run: that is for scripts/test.
"""

import fcntl
import gc
import hashlib
import itertools
import os
import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from . import browsing, over_shards

collect_ignore = ["foreign/make.py"]  # which needs the libraries that its files are made by

# The same examples in every run, and no clock: another process on the machine must not fail a test.
settings.register_profile("softkv", derandomize=True, deadline=None)
settings.load_profile("softkv")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of our own."""
    parser.addoption("--ci", action="store_true", help="run the tests marked ci, too, as is done where files are named")
    parser.addoption("--thorough", action="store_true", help="run the long versions of the crash tests")
    parser.addoption("--seed", type=int, default=None, help="repeat a run of the crash tests by the seed it printed")


def pytest_configure(config: pytest.Config) -> None:
    """Options worked out, markers, and no way out: models are looked for neither in the user's cache nor online."""
    os.environ["HF_HOME"] = str(config.rootpath / ".pytest_cache" / "huggingface")
    os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"  # a port on which nothing listens
    os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
    if hasattr(config, "workerinput"):  # one of the processes that xdist starts
        vars(config.option).update(config.workerinput["decided"])
    else:
        config.option.seed = _seed(config)
        named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
        config.option.ci = named or config.option.ci or config.option.thorough
    for name in ("asyncio", "benchmark", "vcr"):
        config.addinivalue_line("markers", f"{name}: of a plugin that suites of others name, and none of ours needs")
    config.addinivalue_line("markers", "alone: runs while no other process runs a test: it counts on the whole machine")
    config.addinivalue_line("markers", "ci: long, and rarely broken: left out of a run of all tests without --ci")
    config.addinivalue_line("markers", "chromium: drives the page in a real browser, which has to be installed")
    config.addinivalue_line(
        "markers", "slow: starts processes, crashes them, builds packages, or tries thousands of sequences"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process that xdist starts what was decided by its first one."""
    node.workerinput["decided"] = {"seed": node.config.option.seed, "ci": node.config.option.ci}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of the surface of stores run once more over clusters, but for what these refuse."""
    if over_shards.runs(metafunc.module.__name__.rpartition(".")[2], metafunc.function.__name__):
        counts = (0, 1, 3, 8) if metafunc.config.getoption("--thorough") else (0, 3)
        names = ["a store", *(f"{count} shards" for count in counts[1:])]
        metafunc.parametrize("stores_of_shards", counts, ids=names, indirect=True)


@pytest.fixture(autouse=True)
def stores_of_shards(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are to be any, `softkv.open` makes a cluster of so many in the place of a new store."""
    shards = getattr(request, "param", 0)
    if shards:
        monkeypatch.setattr("softkv.open", over_shards.opening(shards))
        # Items without keys go to shards by the names of their batches, which are to be the same in every run.
        counted = itertools.count()
        monkeypatch.setattr("uuid.uuid4", lambda: uuid.UUID(int=next(counted)))


@pytest.fixture(autouse=True)
def secrets_of_stores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The secrets of stores that a test makes follow from the seed, so what is drawn for them is repeated with it."""
    told = f"{request.config.getoption('--seed')} {request.node.nodeid}"
    counted = itertools.count()

    def drawn(length: int) -> bytes:
        return hashlib.blake2b(f"{told} {next(counted)}".encode(), digest_size=length).digest()

    monkeypatch.setattr("softkv.storage.catalog.secret.token_bytes", drawn)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --ci the tests marked so are left out."""
    if not config.option.ci:
        config.hook.pytest_deselected(items=[one for one in items if one.get_closest_marker("ci")])
        items[:] = [one for one in items if not one.get_closest_marker("ci")]


def pytest_collection_finish() -> None:
    """Take what is there out of the sight of the garbage collector, which would walk through torch again and again."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """A test that is marked alone waits until no other process runs a test, and the others wait for it."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    with _turn(Path(item.config.cache.mkdir("turns")), alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def _turn(folder: Path, *, alone: bool) -> Iterator[None]:
    with open(folder / "room", "w") as room, open(folder / "door", "w") as door:
        fcntl.flock(door, fcntl.LOCK_EX)  # whoever waits for an empty room keeps others from entering
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)  # closing it would not do: processes forked meanwhile have it open


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The seed, and what was left out, at the end of every run."""
    terminalreporter.write_line(f"softkv seed: {config.option.seed} (repeat with --seed)")
    if not config.option.ci:
        terminalreporter.write_line("left out: the tests marked ci, which take longer (sh scripts/test --ci runs all)")


def _seed(config: pytest.Config) -> int:
    if config.option.seed is None:
        # CI tells whether a change is sound, and gives the same answer twice; who works on the project tries new cases.
        return 0 if os.environ.get("CI") else random.SystemRandom().randrange(10**9)
    return int(config.option.seed)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this run: new every time but in CI, printed at the end, given back with --seed."""
    return int(request.config.getoption("--seed"))


@pytest.fixture
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether the long versions were asked for."""
    return bool(request.config.getoption("--thorough"))


@pytest.fixture
def real_data() -> str:
    """The folder of real data sets; without it the test is skipped."""
    folder = os.environ.get("SOFTKV_DATA")
    if not folder:
        pytest.skip("SOFTKV_DATA is not set: it names the folder with clinc150, banking77 and uci")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser for the tests of one file: while it is there, the thread has an event loop, and others want none."""
    with browsing.launched() as found:
        yield found
