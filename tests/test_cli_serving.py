"""`softkv serve`: what it prints, what it refuses, and what it says where something is not installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ran
from tests.servers import eventually, films, served


def test_the_url_stands_alone_on_stdout(tmp_path: Path) -> None:
    """The token follows #, which browsers do not send; what else there is to say goes to stderr."""
    with served(films(tmp_path / "films.softkv"), films(tmp_path / "more")) as server:
        assert len(server.token) == 43
        assert server.ask("GET", "/v1/stores")[0] == 200
        assert server.end() == 0
        assert server.log().splitlines()[0] == "serving films, more; Ctrl-C ends it"
        assert server.token not in server.log()


def test_the_url_is_opened_in_a_browser_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no token, since others can read what a browser is started with; unasked, nothing is opened."""
    browser = tmp_path / "browser"
    browser.write_text('#!/bin/sh\nprintf "%s\\n" "$1" >> "$0-opened"\n')
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    opened = tmp_path / "browser-opened"
    with served(films(tmp_path / "films.softkv")):
        assert not opened.exists()
    with served(tmp_path / "films.softkv", options=("--open",)) as server:
        assert eventually(opened.exists)
        assert eventually(lambda: opened.read_text() == f"http://127.0.0.1:{server.port}/\n")
        assert "the page asks for a token" in server.log()


def test_a_token_of_ones_own_is_not_printed(tmp_path: Path) -> None:
    """A token from a file is not printed: it is known already, and what is printed may be kept in a log."""
    file = tmp_path / "token"
    file.write_text("t" * 40 + "\n")
    file.chmod(0o600)
    with served(films(tmp_path / "films.softkv"), options=("--token-file", file)) as server:
        assert server.token == ""
        assert server.ask("GET", "/v1/stores", Authorization="Bearer " + "t" * 40)[0] == 200


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "needs --allow-host NAME, --token-file FILE, --tls-cert FILE"),
        (["--tls-cert", "cert"], "--tls-cert and --tls-key belong together"),
        (["--behind-proxy", "10.0.0.7"], "--allow-host"),
        (["--token-file", "nothing"], "nothing is no file with a token"),
        (["--backups", "nothing"], "Make it first"),
    ],
)
def test_what_is_missing_is_one_message(tmp_path: Path, options: list[str], words: str) -> None:
    """Nothing is printed on stdout then, and the exit code is 1."""
    refused = ran("serve", films(tmp_path / "films.softkv"), *options)
    assert (refused.code, refused.out) == (1, "")
    assert words in refused.err


def test_a_path_that_is_no_store_is_told_in_the_words_of_the_command(tmp_path: Path) -> None:
    """Ports that are none are told in its words as well."""
    refused = ran("serve", tmp_path / "nothing")
    assert refused.code == 1
    assert "`softkv add` makes one" in refused.err
    assert ran("serve", tmp_path / "nothing", "--port", "70000").code == 2
    assert ran("serve").code == 2


def test_what_is_not_installed_is_named(tmp_path: Path) -> None:
    """What to install is said; `softkv --help` needs none of it."""
    script = (
        "import sys; sys.modules[{!r}] = None\n"
        "from softkv_cli.main import main\nsys.argv = ['softkv', *sys.argv[1:]]\nmain()"
    )
    for module in ("uvicorn", "fastapi"):
        command = [sys.executable, "-c", script.format(module)]
        run = subprocess.run([*command, "serve", str(tmp_path)], capture_output=True, text=True, check=False)
        assert (run.returncode, run.stdout) == (1, "")
        assert f"softkv serve needs {module}, which is not installed: pip install 'softkv[serve]'" in run.stderr
        assert subprocess.run([*command, "--help"], capture_output=True, check=False).returncode == 0
