"""Servers that are none of ours: what they say is an error of the library, and none of it is carried out."""

import http.server
import json
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.answer import Answer, Answers, Contributor
from softkv.database import SoftKV
from softkv.doors import wire
from softkv.errors import ServerError
from softkv.page import FIELDS

from .commands import ran
from .databases import filled
from .test_page import content_of

Said = dict[str, tuple[dict[str, str], bytes]]


@contextmanager
def lied_to(path: Path, said: Said) -> Iterator[tuple[SoftKV, list[str]]]:
    """A handle on a server that says what it is told to of paths with these endings, and the paths that were asked."""
    with filled(path, "number") as db:
        info = wire.packed(db.info())
    asked: list[str] = []

    class Liar(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append(self.path)
            headers, body = said.get(self.path.rpartition("/")[2], said.get("*", ({}, info)))
            self.send_response(200)
            for name, value in ({"Content-Type": wire.MEDIA_TYPE, "Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815 - names of the standard library

        def log_message(self, *_: Any) -> None:
            """Nothing is logged."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Liar) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            with softkv.open(f"http://127.0.0.1:{server.server_address[1]}/s", token="t" * 20) as db:
                yield db, asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("name", ["{store.__class__}", "{store:>9999999999}", "{", "{0}", "../../x", "a\nb", "é"])
def test_names_from_a_server_are_parts_of_paths_and_nothing_else(tmp_path: Path, name: str) -> None:
    """What they hold is neither a format nor another path."""
    said = {"snapshots": ({}, wire.packed({"snapshot": name, "commit": 1}))}
    with lied_to(tmp_path / "s", said) as (db, asked):
        db.snapshot().close()
    assert all(path.startswith(("/v1/s/snapshots", "/v1/s/info")) for path in asked)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, b"{"),
        ({}, b'{"$array":0}\n'),
        ({"Content-Encoding": "gzip"}, b"none"),
        ({"Content-Type": "text/html"}, b""),
    ],
    ids=["half a document", "no array", "no gzip", "a page"],
)
def test_answers_that_cannot_be_read_are_errors_of_the_server(
    tmp_path: Path, headers: dict[str, str], body: bytes
) -> None:
    """The error tells of the server, and not of what the caller gave, nor of the libraries of the client."""
    with lied_to(tmp_path / "s", {"get": (headers, body)}) as (db, _):
        db._connection.patience = 0.0  # type: ignore[attr-defined]
        with pytest.raises(ServerError):
            db.get("a")


def test_a_page_of_a_server_has_the_fields_of_a_page_alone(tmp_path: Path) -> None:
    """Others would be shown as a line to copy into a shell, or as a title."""
    with filled(tmp_path / "local", "vector", 3) as db:
        scene = db.scene()
    assert set(scene) <= set(FIELDS)
    evil = scene | {"example": "x; rm -rf ~", "title": "x", "url": "http://evil.example"}
    with lied_to(tmp_path / "s", {"scene": ({}, wire.packed(evil))}) as (db, _):
        assert db.page(tmp_path / "page.html") == 3
        assert content_of((tmp_path / "page.html").read_text("utf-8"))["scenes"] == [scene | {"name": db.path}]


NAMES = ["items", "values", "missing", "next", "snapshot", "commit", "deleted", "key", "value", "state", "problem"]
NAMES += ["progress", "result", "vectors", "count", "store", "kind", "labels", "compatibility", "learned"]
NAMES += ["temperature", "key_width", "value_width", "value_kind", "guard"]
SHAPES: dict[str, Any] = {
    "nothing": None,
    "a number": 7,
    "a text": "text",
    "a list": [1, "a", None],
    "an object": {},
    "another class": Contributor(1, 0.5, 2.0),
    "answers that lack rows": Answers(*[np.zeros(2)] * 7, 1.0, np.zeros((1, 2), int), *[np.zeros((2, 2))] * 2),
    "an answer of texts": Answer(*["x"] * 9),
    "half of it": {"key": "a", "items": [{"key": "a"}], "values": [1.0], "state": "done", "count": 3},
    "an error of no kind": {"state": "failed", "problem": {"error": 7}},
    **{f"fields that are {one!r}": dict.fromkeys(NAMES, one) for one in (None, -1, "x", [], [{}], {"stage": 3}, 2.5)},
    "a promise that is a number": {
        **{"value": 1.0, "scored": 1, "temperature": 1.0, "error_kind": "exact", "contributors": []},
        **{"known": True, "familiarity": 0.5, "promised": 7},
    },
    "pages that never end": {"items": [], "values": [], "missing": [], "next": 0, "state": "done"},
}
FITTING = {("temperature", "nothing"), ("delete", "fields that are -1"), ("pop", "fields that are 'x'")}
FITTING |= {("popitem", "fields that are 'x'")}
QUERY = [1.0, 0.0, 0.0, 0.0, 0.0]
ASKING: dict[str, Callable[[SoftKV], Any]] = {
    "lookup": lambda db: db.lookup(QUERY),
    "lookups": lambda db: list(db.lookup([QUERY, QUERY])),
    "nearest": lambda db: db.nearest(QUERY),
    "compare": lambda db: db.compare(QUERY),
    "self_attention": lambda db: db.self_attention().attention(),
    "evaluate": lambda db: db.evaluate([QUERY], [1.0]),
    "value": lambda db: db["a"],
    "get_many": lambda db: db.get_many(["a", "b"]),
    "item": lambda db: db.item("a"),
    "keys": list,
    "items": lambda db: list(db.items()),
    "select": lambda db: list(db.select()),
    "columns": lambda db: [(one, list(one.blocks()), one.items(0, 9), one.learned) for one in [db.columns()]],
    "len": len,
    "kind": lambda db: db.value_kind,
    "info": lambda db: db.info(),
    "snapshot": lambda db: db.snapshot().commit,
    "add": lambda db: db.add("a", 1.0, vectors=QUERY),
    "set_values": lambda db: db.set_values(["a"], [1.0]),
    "delete": lambda db: db.delete("a"),
    "pop": lambda db: db.pop("a"),
    "popitem": lambda db: db.popitem(),
    "temperature": lambda db: db.set_temperature(1.0),
    "forget": lambda db: db.forget_fit(),
    "guard": lambda db: db.guard(),
    "forget guard": lambda db: db.forget_guard(),
    "forecast": lambda db: db.forecast_index(),
    "build": lambda db: db.build_index(progress=lambda *_: None),
    "compact": lambda db: db.compact(),
    "check": lambda db: db.check(),
    "reembed": lambda db: db.reembed(progress=lambda *_: None),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_answers_of_another_shape_are_errors_of_the_server(tmp_path: Path, shape: str) -> None:
    """They may be wrong in any way: none is returned, and none raises an error of Python."""
    body = wire.packed(SHAPES[shape])
    said: Said = {"*": ({}, body), "info": ({}, body)}
    events: Said = {"events": ({"Content-Type": "text/event-stream"}, b"data: " + body.replace(b"\n", b"") + b"\n\n")}
    with filled(tmp_path / "other", "number") as db:
        first = wire.packed(db.info())
    answers: Said = {"info": ({}, first)}
    with lied_to(tmp_path / "s", answers) as (db, _):
        answers |= said | events
        for name, asks in ASKING.items():
            if (name, shape) in FITTING:
                asks(db)
            else:
                with pytest.raises(ServerError):
                    assert not repr(asks(db)), name


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("[" * 5000, 0),
        ("{}", 0),
        ('[["LooksLikeLabels"]]', 0),
        ('[["LooksLikeLabels", 5]]', 0),
        (json.dumps([["SystemExit", "x" * 3000]] * 9), 4),
    ],
)
def test_hints_of_a_server_are_few_and_short(tmp_path: Path, header: str, expected: int) -> None:
    """What is no hint is passed over, and no class but those of hints is made."""
    said: Said = {"*": ({"Softkv-Hints": header}, wire.packed({"items": 3, "value_kind": None}))}
    with filled(tmp_path / "other", "number") as db:
        said["info"] = ({}, wire.packed(db.info()))
    with lied_to(tmp_path / "s", said) as (db, _), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert len(db) == 3
    assert [(one.category, len(str(one.message))) for one in told] == [(UserWarning, 500)] * expected


@pytest.mark.parametrize("shape", [one for one in SHAPES if "answer" not in one])
def test_commands_are_told_of_answers_of_another_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """One line tells them, though they ask in JSON and by themselves."""
    with filled(tmp_path / "other", "number") as db:
        said: Said = {"info": ({}, wire.packed(db.info()))}
    monkeypatch.setenv("SOFTKV_TOKEN", "t" * 20)
    with lied_to(tmp_path / "s", said) as (db, _):
        said["*"] = ({"Content-Type": "application/json"}, json.dumps(SHAPES[shape], default=repr).encode())
        for command in (["query", "--vector", "1,2,3,4,5"], ["get", "a"]):
            told = ran(*command, "--db", db.path)
            assert (told.code, told.out, len(told.err.splitlines())) == (1, "", 1), told
