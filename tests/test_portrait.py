"""How answers look: as text, as HTML, as plain Python, as JSON, as a frame."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import softkv
from softkv.answer import Answer, Contributor
from softkv.comparison import Comparison, Exact, Warmth
from softkv.errors import MissingExtra
from softkv.portrait import bar, number, short

KEYS = np.eye(3)


def answer(**changes: Any) -> Answer:
    """An answer with two contributors."""
    contributors = (
        Contributor(4, 0.75, 2.0, "<b>Hanna</b>", 48000.0, {"year": 1988}),
        Contributor(7, 0.25, 1.0, "Anna", 52000.0, None),
    )
    fields: dict[str, Any] = {
        "value": 49000.0, "spread": 1732.0, "log_mass": 1.5, "effective": 1.75, "mass": 1.0, "scored": 9,
        "temperature": 0.5, "contributors": contributors, "kind": "number", "error": 1e-6,
    }  # fmt: skip
    return Answer(**fields | changes)


def test_a_number_is_shown_with_its_spread_and_who_it_is_made_of() -> None:
    """The value first, then the contributors with bars, then how much is known."""
    lines = repr(answer()).splitlines()
    assert lines[0] == "49,000 (values spread by 1,732)"
    assert lines[1].split() == ["███████████████", "75.0%", "<b>Hanna</b>", "48,000"]
    assert lines[2].split() == ["█████", "25.0%", "Anna", "52,000"]
    assert lines[3] == "log mass 1.5, effective 1.75, temperature 0.5, exact over 9"


def test_a_part_of_the_mass_and_an_estimate_say_so() -> None:
    """What top-k leaves out, and how far an estimate may be off."""
    assert "62.0% of the mass" in repr(answer(mass=0.62))
    assert "error 0.25 (calibrated), 9 scored" in repr(answer(error=0.25, error_kind="calibrated"))
    assert repr(answer(scored=1)).splitlines()[0] == "49,000"


def test_an_unknown_mass_is_no_share() -> None:
    """Of some k best by an index weights are said to be shares of these, and nothing is told of all."""
    found = answer(mass=None, log_mass=None, error=0.25, error_kind="calibrated", log_mass_floor=2.0)
    told = repr(found).splitlines()[-1]
    assert told.startswith("log mass unknown, effective 1.75, temperature 0.5, weights are shares of these 9, ")
    assert "%" not in told
    assert found.is_far is None
    assert not {"mass", "log_mass", "is_far"} & set(found.to_dict())
    table = Comparison(None, found, found, answer(), ())._repr_html_()
    assert table.count("unknown</td>") == 2


def test_the_rows_compared_are_told_where_they_are_more_than_those_blended() -> None:
    """Top-k tells both; where both are the same, one is enough."""
    told = answer(rows_read=270_000, route="scan", reason="there is no index")
    assert repr(told).endswith("exact over 9 of 270,000 rows read: scanned, there is no index")
    assert repr(answer(rows_read=9)).endswith("exact over 9")


def test_labels_show_their_shares() -> None:
    """The most probable first, those of no weight not at all."""
    found = answer(value=np.array([0.1, 0.9, 0.0]), spread=None, labels=("no", "yes", "maybe"), kind="label")
    assert repr(found).splitlines()[0] == "yes 90.0%, no 10.0%"
    assert found.to_dict()["value"] == "yes"
    assert found.to_dict()["distribution"] == {"no": 0.1, "yes": 0.9, "maybe": 0.0}


def test_texts_show_the_heaviest() -> None:
    """Its words are shown, not its embedding."""
    parts = (Contributor(1, 0.6, 1.0, "a", "one\ntext"), Contributor(2, 0.4, 0.5, "b", "another"))
    found = answer(value=np.zeros(8), spread=None, contributors=parts, kind="text")
    assert repr(found).splitlines()[0] == "one text"
    assert found.to_dict()["value"] == "one\ntext"
    assert found.to_dict()["embedding"] == [0.0] * 8
    assert found.to_dict()["texts"] == [{"text": "one\ntext", "weight": 0.6}, {"text": "another", "weight": 0.4}]
    assert answer(value=np.zeros(8), spread=None, contributors=(), kind="text").texts == ()


def test_html_escapes_what_it_shows() -> None:
    """A key may hold anything, and a notebook would run it."""
    page = answer()._repr_html_()
    assert "<b>Hanna" not in page
    assert "&lt;b&gt;Hanna" in page
    assert page.count("<tr>") == 3


def test_plain_python_is_json_and_nothing_else() -> None:
    """Arrays become lists, what is not there is left out, and JSON gives the same back."""
    found = answer(value=np.array([1.5, 2.5], np.float32), spread=None)
    plain = found.to_dict()
    assert json.loads(found.to_json()) == plain
    assert plain["value"] == [1.5, 2.5]
    assert plain["contributors"][0] == {
        "key": "<b>Hanna</b>", "row": 4, "weight": 0.75, "score": 2.0, "value": 48000.0, "payload": {"year": 1988},
    }  # fmt: skip
    assert "spread" not in plain
    assert "payload" not in plain["contributors"][1]


@pytest.mark.parametrize("library", [np.asarray, torch.tensor])
def test_answers_of_plain_arrays_are_shown_as_well(library: Any) -> None:
    """NumPy or torch, numbers, vectors or labels, with heads: no key, but a row."""
    one = softkv.soft_lookup(library([1.0, 0.0, 0.0]), library(KEYS), library([1.0, 2.0, 3.0]))
    assert "row 0" in repr(one)
    assert isinstance(one, Answer)
    assert json.loads(one.to_json())["contributors"][0]["row"] == 0
    heads = softkv.Heads(w_q=np.ones((2, 2, 3)), w_k=np.ones((2, 2, 3)))
    many = softkv.soft_lookup(KEYS, KEYS, KEYS, heads=heads)
    assert "3 answers" in repr(many)
    assert len(json.loads(many.to_json())) == 3


def test_a_frame_has_a_row_for_each_contributor() -> None:
    """One answer, or many with the number of the query; without pandas, the line that installs it."""
    pandas = pytest.importorskip("pandas")
    frame = answer().to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.weight.tolist() == [0.75, 0.25]
    assert "query" not in frame
    many = softkv.soft_lookup(KEYS[:2], KEYS, [1.0, 2.0, 3.0]).to_pandas()
    assert many["query"].tolist() == [0, 0, 0, 1, 1, 1]
    assert softkv.soft_lookup(KEYS[:1], KEYS, [1.0, 2.0, 3.0]).to_pandas()["query"].tolist() == [0, 0, 0]


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame needs pandas, and says how to get it."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"softkv\[pandas\]"):
        answer().to_pandas()


def test_a_comparison_shows_every_way() -> None:
    """Exact, hard, top k and soft, and the strip from cold to warm."""
    strip = (Warmth(0.1, 1.0, 1.0, 48000.0), Warmth(1.0, 2.0, 0.5, 50000.0, 25.0, "measured"))
    found = Comparison(Exact("Hanna", 48000.0, None), answer(scored=1), answer(mass=0.9), answer(), strip)
    text = repr(found)
    assert text.splitlines()[0] == "exact   48,000"
    assert [line.split()[0] for line in text.splitlines()] == ["exact", "hard", "top", "soft", "T", "T"]
    plain = json.loads(found.to_json())
    assert plain["exact"] == {"key": "Hanna", "value": 48000.0, "payload": None}
    warm = {"temperature": 1.0, "effective": 2.0, "weight": 0.5, "value": 50000.0}
    assert plain["strip"] == [
        {"temperature": 0.1, "effective": 1.0, "weight": 1.0, "value": 48000.0, "error_kind": "exact"},
        warm | {"error": 25.0, "error_kind": "measured"},
    ]
    assert text.splitlines()[-2:] == [
        "  T       0.1  ████████████████████  48,000",
        "  T         1  ██████████            50,000   error 25 (measured)",
    ]
    assert json.loads(Comparison(None, answer(), answer(), answer(), ()).to_json())["exact"] is None


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (1234.5, "1,234"), (1e7, "1e+07"), (-0.00001, "-1e-05"), (float("inf"), "inf"), (0, "0"), (True, "True"),
        ([1.0, 2.0], "[1, 2]"), (None, ""), ("a  b\nc", "a b c"),
    ],
)  # fmt: skip
def test_values_are_shown_short(given: object, shown: str) -> None:
    """Four figures, one line, no more than sixty characters."""
    assert short(given) == shown
    assert len(short("x" * 1000)) == 60


def test_bars_have_the_length_of_their_share() -> None:
    """They go from nothing to full, to an eighth of a cell, whatever comes."""
    assert bar(0.0, 4) == "    "
    assert bar(1.0, 4) == bar(1.2, 4) == "████"
    assert bar(0.5, 4) == "██  "
    assert [bar(n / 32, 4).rstrip() for n in range(4)] == ["", "▏", "▎", "▍"]
    assert number(999.96) == "1000"


def test_everything_shows_itself_in_a_notebook(tmp_path: Path) -> None:
    """The store and what it returns are tables that hold what their text says; what a key holds is never markup."""
    with softkv.open(tmp_path / "s") as db:
        db.update({f"film number {number} <b>": float(number) for number in range(24)})
        question = "film <b>"
        shown = [
            (db, "24 items", "number"),
            (db.info(), "24 items", "cosine"),
            (db.lookup(question), "film number", "%"),
            (db.lookup([question] * 12), "12 answers of kind number", "and 2 more"),
            (db.compare(question), "no such key", "soft, T "),
            (db.tune(), "squared error", "temperature "),
            (db.evaluate([question], [3.0]), "1 query of 24 items", "rmse"),
        ]
        for found, *told in shown:
            page = found._repr_html_()
            assert page.startswith("<div class='tex2jax_ignore mathjax_ignore' ")  # or $…$ would be a formula
            assert all(text in page for text in told), page
            assert "<b>:" not in page
            assert "<b> " not in page
            assert "<script" not in page
        assert "background:#0072b2" in db.lookup(question)._repr_html_()  # bars in the colour of those of the page
    labels = softkv.soft_lookup(KEYS, KEYS, ["<i>", "<i>", "b"])
    assert "&lt;i&gt;" in labels._repr_html_()
    many = softkv.soft_lookup(KEYS, KEYS, KEYS, heads=softkv.Heads(w_q=np.ones((2, 2, 3)), w_k=np.ones((2, 2, 3))))
    assert "3 answers" in many._repr_html_()


def test_a_closed_store_shows_its_name(tmp_path: Path) -> None:
    """Whoever shows a variable asks for no error."""
    db = softkv.open(tmp_path / "<s>")
    db.close()
    assert "&lt;s&gt;" in db._repr_html_()


def test_values_far_from_zero_show_the_digits_in_which_they_differ() -> None:
    """Of a million and a little, or of seconds since 1970, four figures are the same in all values."""
    near = (Contributor(4, 0.75, 2.0, "a", 1000000.25), Contributor(7, 0.25, 1.0, "b", 999999.75))
    found = answer(value=1000000.125, spread=0.217, contributors=near)
    lines = repr(found).splitlines()
    assert lines[0] == "1,000,000.12 (values spread by 0.217)"
    assert [line.split()[-1] for line in lines[1:3]] == ["1,000,000.25", "999,999.75"]
    assert "text-align:right'>1,000,000.25</td>" in found._repr_html_()
    cold = answer(value=1000000.25, spread=1e-8, scored=1, contributors=near[:1])
    compared = Comparison(Exact("a", 1000000.25, None), cold, found, found, (Warmth(0.1, 1.0, 1.0, 1000000.25),))
    assert repr(compared).count("1,000,000.25") == 3
    assert compared._repr_html_().count("1,000,000.25") == 3


@pytest.mark.parametrize(
    ("x", "scale", "shown"),
    [
        (49492.86, 700.0, "49,493"), (12.345678, 0.5, "12.35"), (0.0, 1.0, "0"), (float("inf"), 1.0, "inf"),
        (1e6, 1e-9, "1e+06"), (-1700000123.0, 60.0, "-1,700,000,123"), (12.345678, 0.001, "12.3457"),
        (float("nan"), 1.0, "nan"), (1e6, float("nan"), "1e+06"),
    ],
)  # fmt: skip
def test_four_figures_stay_where_they_suffice(x: float, scale: float, shown: str) -> None:
    """More are shown only for a scale that they hide, and that is more than rounding."""
    assert number(x, scale) == shown
