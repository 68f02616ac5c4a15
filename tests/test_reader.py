"""Everything that reads a database: by key as in a dict, by likeness, in every way side by side."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import softkv
from softkv.answer import Answer, Answers
from softkv.asking.asker import STEPS
from softkv.embedders import find
from softkv.errors import EmbedderNeeded, KeyMissing, KindError, ShapeError, TemperatureError

from .databases import KINDS, filled, vectors_of

QUERIES = vectors_of(3, seed=9)
FILMS = {"a shepherd looks for treasure": "The Alchemist", "two boats on a river": "Upstream"}


def films(path: Path) -> softkv.SoftKV:
    """A database of texts with texts as values."""
    db = softkv.open(path)
    db.add(list(FILMS), list(FILMS.values()))
    return db


def test_a_database_is_a_mapping_in_the_order_of_its_items(tmp_path: Path) -> None:
    """What a dict would say, it says: items, membership, length, defaults."""
    with films(tmp_path / "s") as db:
        assert dict(db) == dict(db.items()) == FILMS
        assert (list(db), list(db.values()), len(db)) == (list(FILMS), list(FILMS.values()), 2)
        assert "two boats on a river" in db
        assert "two boats" not in db
        assert db.get("two boats") is None
        assert db.get("two boats", "nothing") == "nothing"
        with pytest.raises(KeyMissing):
            db["two boats"]
        assert bool(db)
        assert db == FILMS
        assert db != {**FILMS, "two boats on a river": "Downstream"}
        assert db != dict(list(FILMS.items())[:1])
        assert db != list(FILMS)
        with pytest.raises(TypeError):
            hash(db)


@pytest.mark.parametrize("kind", KINDS)
def test_stores_are_equal_when_their_items_are(tmp_path: Path, kind: str) -> None:
    """Whatever the values are, vectors too; a snapshot equals the store until that changes."""
    with filled(tmp_path / "s", kind, count=5) as one, filled(tmp_path / "t", kind, count=5) as other:
        assert one == other
        with one.snapshot() as then:
            assert then == one
            other.add(["item 1"], [one["item 2"]], vectors=[QUERIES[0]], on_conflict="replace")
            assert (one == other) is bool(np.array_equal(one["item 1"], one["item 2"]))
            one.delete("item 0")
            assert then != one


@pytest.mark.parametrize("kind", KINDS)
def test_rank_follows_rank(tmp_path: Path, kind: str) -> None:
    """A vector gives one Answer; a matrix or a list gives Answers, even for one query; they say the same."""
    with filled(tmp_path / "s", kind) as db:
        one, batch = db.lookup(QUERIES[0]), db.lookup(QUERIES[:1])
        assert isinstance(one, Answer)
        assert isinstance(batch, Answers)
        assert len(batch) == 1
        assert np.array_equal(batch[0].value, one.value)
        assert batch[0].contributors == one.contributors
        assert isinstance(db.lookup(QUERIES[0].tolist()), Answer)
        assert isinstance(db.lookup([QUERIES[0].tolist()]), Answers)


def test_texts_ask_as_their_vectors_do(tmp_path: Path) -> None:
    """A text is embedded as a query; a list of texts gives Answers."""
    with films(tmp_path / "s") as db:
        one, batch = db.lookup("a boy on a boat"), db.lookup(["a boy on a boat", "gold"])
        assert isinstance(one, Answer)
        assert len(batch) == 2
        assert batch[0].log_mass == pytest.approx(one.log_mass, rel=1e-5)
        vector = find("static").queries(["a boy on a boat"])[0]
        assert db.lookup(vector).contributors == one.contributors
        assert db.lookup(np.array(["gold", "boat"]))[1].texts[0].text == "Upstream"


def test_queries_that_are_none_are_refused(tmp_path: Path) -> None:
    """Wrong widths, mixtures, ragged lists, booleans, masked numbers, three axes: each by its own name."""
    with films(tmp_path / "s") as db:
        with pytest.raises(ShapeError, match="width 3, but this store holds keys of width 256 \\(embedder 'static'\\)"):
            db.lookup([1.0, 2.0, 3.0])
        with pytest.raises(KindError, match="mixture"):
            db.lookup(["a", [1.0]])
        with pytest.raises(ShapeError, match="ragged"):
            db.lookup([[1.0], [1.0, 2.0]])
        with pytest.raises(KindError, match="bool"):
            db.lookup([True, False])
        with pytest.raises(KindError, match="without a mask"):
            db.lookup(np.ma.masked_equal(np.eye(1, 256)[0], 1))
        with pytest.raises(KindError):
            db.lookup(None)
        with pytest.raises(ShapeError, match="shape"):
            db.lookup(np.zeros((1, 1, 256)))
        with pytest.raises(TemperatureError):
            db.lookup("gold", temperature=0)


def test_texts_need_an_embedder_that_made_the_keys(tmp_path: Path) -> None:
    """A store of bare vectors does not know what a text means, and says what would help."""
    with filled(tmp_path / "s", "number") as db, pytest.raises(EmbedderNeeded, match="bare vectors"):
        db.lookup("gold")
    with (
        softkv.open(tmp_path / "s", "r", embedder="static") as db,
        pytest.raises(EmbedderNeeded, match="keys of width 5, but its embedder 'static' makes vectors of width 256"),
    ):
        db.lookup("gold")


@pytest.mark.parametrize("kind", KINDS)
def test_the_nearest_takes_all(tmp_path: Path, kind: str) -> None:
    """The hard answer is the value of the best key, and its weight is what it holds of the full mass."""
    with filled(tmp_path / "s", kind) as db:
        hard, soft = db.nearest(QUERIES[0]), db.lookup(QUERIES[0])
        (best,) = hard.contributors
        assert best.row == soft.contributors[0].row
        assert best.weight == pytest.approx(soft.contributors[0].weight)
        assert hard.scored == 1
        assert hard.mass == pytest.approx(best.weight)
        value = db[str(best.key)]
        if kind == "label":
            assert hard.label == value
        elif kind == "text":
            assert hard.texts == ((value, best.weight),)
        else:
            assert np.array_equal(hard.value, value)
        assert len(db.nearest(QUERIES)) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_comparison_holds_every_way(tmp_path: Path, kind: str) -> None:
    """Exact, hard, top-k and full soft are what the single calls give; the strip goes from the best to the mean."""
    with filled(tmp_path / "s", kind) as db:
        found = db.compare(QUERIES[0], k=3)
        assert found.exact is None
        assert np.array_equal(found.hard.value, db.nearest(QUERIES[0]).value)
        assert np.array_equal(found.top_k.value, db.lookup(QUERIES[0], k=3).value)
        assert np.array_equal(found.soft.value, db.lookup(QUERIES[0]).value)
        assert [one.temperature for one in found.strip] == [db.info().temperature * step for step in STEPS]
        effective = [one.effective for one in found.strip]
        assert effective == sorted(effective)
        assert effective[0] < 2 < 30 < effective[-1]
        assert "no such key" in repr(found)


def test_a_comparison_finds_the_equal_key(tmp_path: Path) -> None:
    """A text that is a key, or a vector that is a key vector number by number, has an exact answer."""
    with films(tmp_path / "s") as db:
        found = db.compare("two boats on a river")
        assert found.exact == ("two boats on a river", "Upstream", None)
        assert db.compare("two boats").exact is None
        with pytest.raises(ShapeError, match="one at a time"):
            db.compare(["two boats on a river"])
    with filled(tmp_path / "t", "number") as db:
        vector = db.item("item 7").vector
        exact = db.compare(vector).exact
        assert exact == ("item 7", db["item 7"], {"n": 7, "even": False})
        db.delete("item 7")
        assert db.compare(vector).exact is None


def test_items_are_selected_in_their_order(tmp_path: Path) -> None:
    """All of them, or a stretch, or those that match a filter, or a stretch of those."""
    with filled(tmp_path / "s", "number") as db:
        assert [item.name for item in db.select()] == list(db)
        assert [item.key for item in db.select(start=38)] == ["item 38", "item 39"]
        assert [item.key for item in db.select({"even": True}, start=1, stop=3)] == ["item 2", "item 4"]
        assert list(db.select({"n": -1})) == []


def test_answers_know_their_items(tmp_path: Path) -> None:
    """Contributors carry key, value and payload as given, of batches as well."""
    with filled(tmp_path / "s", "number") as db:
        for answer in (db.lookup(QUERIES[0]), db.lookup(QUERIES)[1]):
            for one in answer.contributors:
                assert one.value == db[str(one.key)]
                assert one.payload == db.item(str(one.key)).payload


def test_many_answers_are_named_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking one answer after the other asks the store for the contributors of many, and says the same of each."""
    with filled(tmp_path / "s", "number", count=300) as db:
        answers = db.lookup(vectors_of(150, seed=4), show=7)
        asked, describe = [], type(answers.source).describe
        monkeypatch.setattr(
            type(answers.source), "describe", lambda view, rows: asked.append(len(rows)) or describe(view, rows)
        )
        taken = [one.to_dict() for one in answers]
        assert len(asked) == 3
        assert taken == [answers[index].to_dict() for index in range(150)]
        assert [len(one["contributors"]) for one in taken] == [7] * 150


def test_contributors_without_a_key_show_their_text(tmp_path: Path) -> None:
    """What was embedded is what one wants to see; where it is the key itself, it is not said twice."""
    with softkv.open(tmp_path / "s", value="label") as db:
        db.add(values=["card", "cash"], texts=["my card is lost", "where can I get cash"])
        db.add("a key", "card", texts="another text about cards")
        db.add("the card was eaten", "card")
        found = {one.key: one.text for one in db.lookup("my card").contributors}
        assert found["#1"] == "my card is lost"
        assert found["a key"] == "another text about cards"
        assert found["the card was eaten"] is None
        assert "my card is lost" in repr(db.lookup("my card"))
        assert "#1" not in repr(db.lookup("my card"))


def test_a_snapshot_keeps_answering_as_it_did(tmp_path: Path) -> None:
    """Whatever is added, deleted or compacted meanwhile, a snapshot sees the store as it was."""
    with filled(tmp_path / "s", "number") as db:
        with db.snapshot() as kept:
            before, names = kept.lookup(QUERIES[0]), list(kept)
            db.delete(["item 0", "item 1"])
            db.add(["new"], [1.0], vectors=[QUERIES[0]])
            db.compact()
            assert (list(kept), kept.lookup(QUERIES[0]).value) == (names, before.value)
            assert db.lookup(QUERIES[0]).value != before.value
        assert db.check().ok


def test_heads_ask_in_their_own_scale(tmp_path: Path) -> None:
    """Learned projections are scaled dot products at temperature 1, and equal the same lookup on plain arrays."""
    rng = np.random.default_rng(5)
    heads = softkv.Heads(w_q=rng.standard_normal((2, 4, 5)), w_k=rng.standard_normal((2, 4, 5)))
    with filled(tmp_path / "s", "vector") as db:
        items = list(db.select())
        keys, values = np.stack([one.vector for one in items]), np.stack([np.asarray(one.value) for one in items])
        plain = softkv.soft_lookup(QUERIES, keys, values, heads=heads)
        found = db.lookup(QUERIES, heads=heads)
        assert found.value == pytest.approx(plain.value, abs=1e-5)
        assert found.log_mass.shape == (3, 2)
        assert found[0].head_weights.shape == (2, 10)


def test_a_reader_needs_no_right_to_write(tmp_path: Path) -> None:
    """A handle opened for reading answers like the writer's, and refuses to change anything."""
    filled(tmp_path / "s", "number").close()
    with softkv.open(tmp_path / "s", "r") as db:
        assert db.lookup(QUERIES[0]).scored == 40
        for change in (lambda: db.add("a", 1.0), lambda: db.delete("item 0"), db.clear, db.compact, db.popitem):
            with pytest.raises(softkv.errors.AccessRefused):
                change()


@pytest.mark.parametrize("given", [list, np.asarray, torch.tensor, pandas.Series])
def test_queries_come_from_any_library(tmp_path: Path, given: Any) -> None:
    """Lists, arrays, tensors and columns of a table ask alike; so do columns of texts."""
    with filled(tmp_path / "s", "number") as db:
        assert db.lookup(given(QUERIES[0].tolist())).value == pytest.approx(db.lookup(QUERIES[0]).value)
        assert db.lookup(QUERIES, temperature=given([0.1, 0.2, 0.4]))[2].temperature == pytest.approx(0.4)
    with films(tmp_path / "t") as db:
        if given is not torch.tensor:
            assert len(db.lookup(given(["gold", "boat"]))) == 2


def test_what_cannot_be_read_as_a_query_is_refused_by_name(tmp_path: Path) -> None:
    """The error is ours, and not that of whichever library notices first."""
    with filled(tmp_path / "s", "number") as db:
        for query in (
            torch.zeros(5, requires_grad=True),
            np.array("gold"),
            [10**400] * 5,
            {"a": 1},
            b"gold",
            iter([1.0]),
        ):
            with pytest.raises(KindError):
                db.lookup(query)
        for temperature in (True, "0.5", 2**2000, [0.0, 1.0, 1.0], [[0.1]]):
            with pytest.raises(softkv.errors.InputError):
                db.lookup(QUERIES, temperature=temperature)
        for where in ("n", ["n"], [("n", 1)], 5):
            with pytest.raises(softkv.errors.FilterError):
                db.lookup(QUERIES, where=where)
        with pytest.raises(ShapeError, match="ragged"):
            db.lookup(QUERIES, mask=[[True], [True, False]])
        with pytest.raises(softkv.errors.AllMasked, match="leaves no item"):
            db.lookup(QUERIES[0], mask=[False] * 40)
        with pytest.raises(softkv.errors.NotFinite):
            db.lookup([1e39] * 5)
        with pytest.raises(KindError, match="Heads"):
            db.lookup(QUERIES, heads="two")


@pytest.mark.parametrize("kind", KINDS)
def test_no_queries_have_no_answers(tmp_path: Path, kind: str) -> None:
    """An empty list is no mistake, as the end of a stream may be one."""
    with filled(tmp_path / "s", kind) as db:
        for query in ([], np.zeros((0, 5))):
            for options in ({}, {"k": 3}, {"where": {"n": {"$lt": 3}}}, {"show": 0}):
                answers = db.lookup(query, **options)
                assert (len(answers), list(answers), answers.to_dict()) == (0, [], [])


def test_no_queries_have_no_answers_by_heads_either(tmp_path: Path) -> None:
    """The width of the queries is that of the heads, which an empty list does not tell."""
    heads = softkv.Heads.random(2, query_width=7, key_width=5, value_width=3, head_width=4, seed=0)
    with filled(tmp_path / "s", "vector") as db:
        for query in ([], np.zeros((0, 7))):
            assert db.lookup(query, heads=heads).value.shape == (0, heads.output_width(3))


def test_answers_outlive_the_store_when_they_are_pickled(tmp_path: Path) -> None:
    """They carry their contributors along; those that were not say that the store is closed."""
    with filled(tmp_path / "s", "number") as db:
        answers = db.lookup(QUERIES)
        expected = [answer.contributors for answer in answers]
        copies = [pickle.loads(pickle.dumps(answers)), copy.deepcopy(answers)]
        comparison = pickle.loads(pickle.dumps(db.compare(QUERIES[0])))
    for kept in copies:
        assert [answer.contributors for answer in kept] == expected
        assert [one.payload for one in kept[1].contributors] == [one.payload for one in expected[1]]
        assert np.array_equal(kept.value, answers.value)
    assert [one.payload for one in comparison.soft.contributors] == [one.payload for one in expected[0]]
    with pytest.raises(softkv.errors.HandleClosed):
        answers[0]


def test_items_are_iterated_as_of_one_commit(tmp_path: Path) -> None:
    """What is changed meanwhile is seen by the next iteration, not by this one."""
    with filled(tmp_path / "s", "number", count=5) as db:
        before = list(db.items())
        for view, expected in ((db.items(), before), (db.values(), [value for _, value in before]), (db, list(db))):
            seen = iter(view)
            first = next(seen)
            db.add("item 4", 100.0, vectors=QUERIES[0], on_conflict="replace")
            db.delete("item 3")
            db.compact()
            assert [first, *seen] == expected
            db.add("item 3", before[3][1], vectors=QUERIES[0])
            db.add("item 4", before[4][1], vectors=QUERIES[0], on_conflict="replace")
            db.delete("item 4")
            db.add("item 4", before[4][1], vectors=QUERIES[0])
        assert (before[2] in db.items(), before[2][1] in db.values(), len(db.items())) == (True, True, 5)
