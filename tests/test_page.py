"""What the page is made of: one file that holds what it shows, says so, and can run nothing else."""

import base64
import hashlib
import json
import re
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.database.reader import Reader
from softkv.errors import EmptyStore, InputError, NotExpressible, StoreExists
from softkv.maths.principal import PrincipalPlane
from softkv.page import document

from .commands import ran
from .databases import filled, vectors_of
from .listening import listening
from .serving import ask, refused, serving

HOSTILE = "</script><script>alert(1)</script><!-- {{script}} \u202e"
PAGE = Path(softkv.__file__).parent / "page"


def content_of(text: str) -> Any:
    """The JSON that a page carries."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_a_page_is_one_file_whose_policy_names_its_own_script_and_style_alone() -> None:
    """The policy has their hashes, and nothing may be loaded from anywhere."""
    text = document({"scenes": []})
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    allowed = dict(part.split(" ", 1) for part in policy[1].split("; "))
    assert allowed["default-src"] == "'none'"
    for name, tag in (("script-src", "<script>"), ("style-src", "<style>")):
        inner = text.split(tag)[1].split(tag.replace("<", "</"))[0]
        assert allowed[name] == f"'sha256-{base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()}'"
    assert "connect-src" not in allowed
    assert not re.search(r"""(src|href)=["']?(https?:|//)""", text)


def test_nothing_in_the_data_ends_their_element() -> None:
    """No tag does, no beginning of a comment, and no place that is filled in."""
    text = document({"scenes": [], "name": HOSTILE})
    assert content_of(text)["name"] == HOSTILE
    assert text.count("</script>") == 2
    assert "alert(1)<" not in text
    assert "<!-- " not in text


def test_a_page_carries_all_items_of_a_small_store(tmp_path: Path) -> None:
    """Keys, values, payloads and vectors to the last bit, and the queries with the answers of the store."""
    with filled(tmp_path / "s", "number", 30) as db:
        assert db.page(tmp_path / "page.html", queries=vectors_of(2, seed=3)) == 30
        answer = db.lookup(vectors_of(2, seed=3)[1])
        (scene,) = content_of((tmp_path / "page.html").read_text("utf-8"))["scenes"]
        assert scene["keys"] == list(db)
        assert scene["values"] == list(db.values())
    assert scene["payloads"][7] == {"n": 7, "even": False}
    packed = np.frombuffer(base64.b64decode(scene["vectors"]), "<f4").reshape(30, 5)
    assert packed.tobytes() == vectors_of(30).tobytes()
    assert scene["queries"][1]["value"] == repr(answer).splitlines()[0]
    assert (scene["drawn"], scene["total"], len(scene["evidence"])) == (None, 30, 30)


def test_of_a_larger_store_items_are_drawn_with_a_seed(tmp_path: Path) -> None:
    """One seed draws the same ones, in their order, and the page knows how many there are in all."""
    with filled(tmp_path / "s", "label", 50) as db:
        for name in ("a.html", "b.html"):
            assert db.page(tmp_path / name, items=20) == 20
    (scene,) = content_of((tmp_path / "a.html").read_text("utf-8"))["scenes"]
    assert (scene["drawn"], scene["total"], len(scene["keys"])) == (0, 50, 20)
    assert scene["numbers"] == sorted(scene["numbers"])
    assert scene["numbers"] != list(range(1, 21))
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_what_cannot_be_a_page_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """An empty store, no items, too many numbers, heads over labels, a file that is there, a place in the store."""
    path = tmp_path / "page.html"
    with softkv.open(tmp_path / "empty") as db, pytest.raises(EmptyStore):
        db.page(path)
    narrow = softkv.Heads.random(1, query_width=2, key_width=5, value_width=1, head_width=3, seed=0)
    with filled(tmp_path / "n", "number", 5) as db, pytest.raises(InputError, match="Give queries"):
        db.page(path, heads=narrow)
    with filled(tmp_path / "s", "label", 5) as db:
        with pytest.raises(InputError, match="items to be a whole number"):
            db.page(path, items=0)
        with pytest.raises(NotExpressible, match="Leave out heads"):
            db.page(path, heads=softkv.Heads.identity(1, width=5))
        with pytest.raises(InputError, match="lies in the store"):
            db.page(tmp_path / "s" / "page.html")
        assert not path.exists()
        db.page(path)
        with pytest.raises(StoreExists):
            db.page(path)
        assert db.page(path, force=True) == 5


def test_a_page_too_large_says_how_many_items_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The width of the vectors decides, or the most items that a page has; before a vector is read."""

    def read(*_: Any) -> None:
        raise AssertionError("vectors were read")

    with filled(tmp_path / "s", "number", 30) as db:
        monkeypatch.setattr("softkv.page.scene._compared", read)
        for name, most, fit in (("LARGEST", 50, 10), ("MOST", 7, 7)):
            with monkeypatch.context() as changed:
                changed.setattr(f"softkv.page.scene.{name}", most)
                with pytest.raises(InputError, match=f"Ask for items={fit}\\."):
                    db.page(tmp_path / "page.html")


def test_long_texts_are_cut(tmp_path: Path) -> None:
    """A page carries the first thousand characters, says how many there are, and tells texts that begin alike apart."""
    with softkv.open(tmp_path / "s", embedder=lambda texts: [[1.0, 0.0]] * len(texts)) as db:
        db.add("k" * 1500, "word " * 800)
        db.page(tmp_path / "page.html")
    (scene,) = content_of((tmp_path / "page.html").read_text("utf-8"))["scenes"]
    assert scene["keys"] == [f"{'k' * 1000}… (500 more characters, {zlib.crc32(b'k' * 1500):08x})"]
    assert scene["values"] == [f"{'word ' * 200}… (3,000 more characters, {zlib.crc32(b'word ' * 800):08x})"]


def test_large_payloads_are_cut_to_the_beginning_of_their_json(tmp_path: Path) -> None:
    """Those of up to 4,096 characters are there whole."""
    small, large = {"note": "x" * 4000}, {"note": "y" * 100_000}
    with softkv.open(tmp_path / "s") as db:
        db.add(["small", "large"], [1, 2], payloads=[small, large], vectors=np.eye(2))
        payloads = db.scene()["payloads"]
    assert payloads[0] == small
    assert (
        payloads[1]
        == '{"note": "' + "y" * 990 + f"… (99,012 more characters, {zlib.crc32(json.dumps(large).encode()):08x})"
    )


def test_a_server_makes_pages_of_at_most_a_hundred_queries(tmp_path: Path) -> None:
    """Each is asked of the whole store."""
    filled(tmp_path / "s", "number", 5).close()
    with serving(tmp_path / "s") as client:
        queries = vectors_of(101).tolist()
        assert len(ask(client, "/v1/s/scene", {"queries": queries[:100]})["queries"]) == 100
        status, error, words = refused(client, "/v1/s/scene", {"queries": queries})
    assert (status, error) == (422, "InputError")
    assert "at most 100 queries" in words


def test_the_queries_of_a_page_are_asked_for_as_long_as_somebody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight at a time; the server looks at the clock in between."""
    told: list[tuple[str, int, int]] = []
    with filled(tmp_path / "s", "number", 5) as db:
        scene = db.scene(queries=vectors_of(20), progress=lambda *one: told.append(one))
        values = [repr(one).splitlines()[0] for one in db.lookup(vectors_of(20))]
    assert [one["value"] for one in scene["queries"]] == values
    assert told == [("asking", done, 20) for done in (0, 8, 16)]
    asked, late, lookup = list[int](), threading.Event(), Reader.lookup

    def slow(self: Reader, queries: Any, **options: Any) -> Any:
        asked.append(len(queries))
        assert late.wait(30)
        return lookup(self, queries, **options)

    monkeypatch.setattr(Reader, "lookup", slow)
    with serving(tmp_path / "s") as client:
        found = refused(client, "/v1/s/scene", {"queries": vectors_of(20).tolist()}, softkv_deadline="0.5")
        late.set()
    assert found[:2] == (504, "DeadlinePassed")
    assert asked == [8]


def test_the_command_writes_a_page(tmp_path: Path) -> None:
    """It says that the file holds the items, and how many of how many."""
    with softkv.open(tmp_path / "s") as db:
        db.add(["a small room", "a large house", "two rooms"], [540, 2450, 890])
    file = tmp_path / "page.html"
    done = ran("page", "-o", file, "--query", "one room", "--query", "a palace", "--items", 2, "-d", tmp_path / "s")
    assert done.code == 0
    assert done.err.startswith(f"wrote {file}: whoever has it can read its 2 items of 3, drawn with a seed (")
    (scene,) = content_of(file.read_text("utf-8"))["scenes"]
    assert [one["text"] for one in scene["queries"]] == ["one room", "a palace"]
    again = ran("page", "-o", file, "-d", tmp_path / "s")
    assert (again.code, "--force" in again.err) == (1, True)


def test_the_page_is_small_enough_to_be_read() -> None:
    """There are at most 1,800 lines of HTML, styles and scripts."""
    sources = [path for path in PAGE.iterdir() if path.suffix in (".html", ".css", ".js")]
    assert sum(len(path.read_text("utf-8").splitlines()) for path in sources) <= 1800


def test_the_plane_is_that_of_the_singular_values() -> None:
    """There may be more vectors or more numbers in each; and vectors far beyond float32."""
    for shape in ((40, 7), (7, 40)):
        vectors = np.random.default_rng(2).standard_normal(shape)
        plane = PrincipalPlane.of(vectors)
        left, sizes, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
        placed = plane.placed(vectors) * plane.unit
        assert np.abs(placed) == pytest.approx(np.abs(left[:, :2] * sizes[:2]))
        assert plane.share == pytest.approx(float((sizes[:2] ** 2).sum() / (sizes**2).sum()))
    assert np.isfinite(PrincipalPlane.of(np.array([[1e200, 0.0], [-1e200, 1e200]])).placed(np.eye(2))).all()


def test_vectors_that_are_all_alike_have_a_plane() -> None:
    """All lie at its middle, and so does one that is alone and one number wide."""
    for vectors in (np.ones((3, 4)), np.zeros((2, 1)), np.ones((1, 1))):
        assert not PrincipalPlane.of(vectors).placed(vectors).any()


def test_a_page_of_a_store_behind_a_url_is_that_of_its_files(tmp_path: Path) -> None:
    """A page of a store behind a URL is that of its files, but for its name, so that its lines ask the server."""
    filled(tmp_path / "s", "number", 30).close()
    with (
        listening(tmp_path / "s") as url,
        softkv.open(f"{url}/s", token="") as db,
        softkv.open(tmp_path / "s", "r") as local,
    ):
        for one, name in ((db, "a.html"), (local, "b.html")):
            assert one.page(tmp_path / name, 20, queries=vectors_of(2)) == 20
        with pytest.raises(StoreExists):
            db.page(tmp_path / "a.html")
    remote, near = (content_of((tmp_path / name).read_text("utf-8"))["scenes"][0] for name in ("a.html", "b.html"))
    assert remote.pop("name") == f"{url}/s"
    assert near.pop("name") == "s"
    assert remote == near
