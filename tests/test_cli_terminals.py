"""What the command shows on terminals of any width: a number is whole or absent, and words are not broken."""

import re
from pathlib import Path

import numpy as np
import pytest
from softkv_cli import benching, output
from softkv_cli.contest import Result

import softkv

from .commands import ran

WIDTHS = (20, 24, 30, 40, 50, 60, 72, 80, 100, 120)
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,.]*(?:e[+-]?\d+)?%?")
KINDS = ("number", "vector", "label", "text")
VALUES = {
    "number": [49492.86, 0.00012345, -1234567.891, 85.25],
    "vector": np.linspace(-12345.6, 98765.4, 28).reshape(4, 7),
    "label": ["refund_status_enquiry", "parcel", "a long name of an intent", "parcel"],
    "text": ["A shepherd seeks 12,345 treasures.", "Two boats of 1998.", "One map.", "A desert."],
}
KEYS = ["a boy looking for treasure", "two boats", "the incomprehensible rainforest expedition", "gold of the desert"]


def shown(*arguments: object, columns: int) -> str:
    """What stands on a terminal of this width, without its styles."""
    done = ran(*arguments, terminal=True, columns=columns)
    assert done.code == 0, done.err
    return re.sub(r"\x1b\[[\d;]*m", "", done.out)


@pytest.fixture(scope="module", params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store of each kind, with numbers of many digits."""
    path = tmp_path_factory.mktemp(request.param) / "s"
    payloads = [{"year": 2004 + place, "price": 1234.5678} for place in range(4)]
    with softkv.open(path, value=request.param) as db:
        db.add(KEYS, VALUES[request.param], payloads=payloads)
    return path


@pytest.mark.parametrize(
    "arguments",
    [["query", "a treasure", "--explain"], ["compare", "a treasure"], ["list"], ["info"], ["index", "status"]],
    ids=" ".join,
)
def test_a_number_is_whole_or_absent(store: Path, arguments: list[str]) -> None:
    """At every width no line is longer than the terminal, and no number is one that a wide terminal does not show."""
    # The digits of a path are no number, and a path that is longer than a line is not broken.
    known = {*NUMBER.findall(shown(*arguments, "--db", store, columns=250)), *NUMBER.findall(str(store))}
    for columns in WIDTHS:
        text = shown(*arguments, "--db", store, columns=columns)
        cut = [one for one in NUMBER.findall(text) if one.strip(".,") not in {one.strip(".,") for one in known}]
        assert cut == [], f"at {columns}:\n{text}"
        assert [line for line in text.splitlines() if len(line) > columns and str(store) not in line] == []


def test_measures_are_whole_at_any_width(store: Path, tmp_path: Path) -> None:
    """The table of `compare --eval`, of a store of texts the refusal."""
    if store.parent.name.startswith("text"):
        return
    answers = [",".join(map(str, one)) if np.ndim(one) else str(one) for one in VALUES[store.parent.name[:-1]]]
    names = [f"value{place}" for place in range(answers[0].count(",") + 1)]
    lines = [",".join(["text", *names]), *(f"ask {key},{one}" for key, one in zip(KEYS, answers, strict=True))]
    (tmp_path / "asked.csv").write_text("\n".join(lines) + "\n")
    command = ("compare", "--eval", tmp_path / "asked.csv", "--key", "text", "--value", ",".join(names), "--db", store)
    known = {*NUMBER.findall(shown(*command, columns=250))}
    for columns in WIDTHS:
        text = shown(*command, columns=columns)
        assert {*NUMBER.findall(text)} == known, text
        assert max(map(len, text.splitlines())) <= columns


def test_times_of_this_machine_are_whole_at_any_width(capsys: pytest.CaptureFixture[str]) -> None:
    """The table of `bench`: ten columns, of which eight are numbers."""
    facts = {"queries": 32}
    found = [
        Result(f"softkv, way {place}", 1234.567, 12.3, 0.0123, 98765.4, 45.6, 7.89, 1e6, 0.00123) for place in "ab"
    ]
    for columns in WIDTHS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", str(columns))
            output.show(benching._table(facts, found))
        text = capsys.readouterr().out
        assert {"1234.57", "98765.40", "1,000,000", "0.0123", "0.0012"} <= {*NUMBER.findall(text)}, text
        assert max(map(len, text.splitlines())) <= columns


def test_models_are_whole_at_any_width() -> None:
    """Their widths, and their names as far as they fit."""
    for columns in WIDTHS:
        assert "256" in shown("models", columns=columns)


def test_a_comparison_fits_eighty_columns(store: Path) -> None:
    """All ways stand side by side, and no word is broken: one that is too long ends in an ellipsis."""
    table = shown("compare", "a treasure", "--db", store, columns=80)
    assert all(name in table.splitlines()[0] for name in ("exact", "hard", "top 4", "full soft"))
    stored = VALUES["label"] + VALUES["text"]
    words = {word for text in [*KEYS, *map(str, stored)] for word in re.findall(r"[a-z_]+", text.lower())}
    words |= {*re.findall(r"\w+", "no such key value weights effective exact hard top full soft of the mass")}
    words |= {*re.findall(r"\w+", "temperature weight best usual numbers values spread by")}
    found = re.findall(r"[a-z_]+…?", NUMBER.sub("", table.lower()))
    assert [one for one in found if one not in words and not one.endswith("…")] == []
    assert "boats" in table


def test_a_bar_gives_way_before_a_number(store: Path) -> None:
    """On a narrow terminal the table has no bars, on a narrower one each item has lines of its own."""
    wide, narrow, least = (shown("query", "two boats", "--db", store, columns=columns) for columns in (100, 44, 20))
    assert ("█" in wide, "█" in narrow, "█" in least) == (True, False, False)
    assert wide.splitlines()[1].split()[:2] == ["weight", "key"]
    assert re.search(r"^weight [\d.]+%$", least, re.MULTILINE)
    assert re.search(r"^key two boats$", least, re.MULTILINE)
