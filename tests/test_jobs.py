"""Five jobs that people come with: each question in tests/jobs leads by links from README to a section that answers it.

A file there is a job. Below a question stand one or two paths, from page to page and at last to a section. Then comes
what answers it: `>` words of that section; `$` a command of it, with other texts in quotes or another vector, and parts
of what it prints, with the exit code unless that is 0 (`$ ...` are all shell lines of the section); or nothing, where
the section has examples, which tests/test_docs.py runs. The commands of a job are run in their order, in a directory
that holds the files which the job names.
"""

import csv
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from softkv_examples import load
from softkv_examples.questions import clinc150

import softkv

from .test_docs import PAGES

ROOT = Path(__file__).parent.parent
LONG = "million"  # the job that measures the machine
JOBS = sorted((ROOT / "tests" / "jobs").glob("*.md"))
LINK = re.compile(r'(?:\]\(|src=")([^)"\s]+)')
SHELL = re.compile(r"^ *```sh\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SMALLER = {"--items 1000000": "--items 1000", "$(date +%u)": "1"}  # fewer items, and each day is a Monday


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody asks, the pages that lead to the answer, and what it is made of."""

    asked: str
    paths: list[list[str]]
    quotes: list[str]
    commands: list[tuple[str, list[str]]]  # and what each prints


def questions(job: Path) -> Iterator[Question]:
    """The questions of a job, in their order."""
    for part in job.read_text(encoding="utf-8").split("\n## ")[1:]:
        asked, *lines = part.splitlines()
        told = [line.strip() for line in lines if line.startswith("    ")]
        starts = [number for number, line in enumerate(told) if line[:2] in ("$ ", "! ")]
        ends = [*starts[1:], len(told)][: len(starts)]
        yield Question(
            asked,
            [line.split(" > ") for line in lines if line.startswith("README.md")],
            [line[2:] for line in lines if line.startswith("> ")],
            [(told[start], told[start + 1 : end]) for start, end in zip(starts, ends, strict=True)],
        )


def sections(page: Path) -> Iterator[tuple[str, str]]:
    """The anchors of a page, each with the text below its heading, subsections included; and "" with all of it."""
    text = page.read_text(encoding="utf-8")
    yield "", text
    lines, fenced, heads = text.splitlines(keepends=True), False, []
    for number, line in enumerate(lines):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and (heading := re.match(r"(#+) (.*)", line)):
            heads.append((number, len(heading[1]), re.sub(r"[^\w\- ]", "", heading[2].lower()).replace(" ", "-")))
    for place, (start, depth, anchor) in enumerate(heads):
        end = next((number for number, other, _ in heads[place + 1 :] if other <= depth), len(lines))
        yield anchor, "".join(lines[start:end])


def section(step: str) -> str:
    """The text that a step such as "docs/index.md#routes" leads to."""
    page, _, anchor = step.partition("#")
    return dict(sections(ROOT / page))[anchor]


def linked(page: Path) -> set[str]:
    """Where the links of a page lead in the project, as paths from its root."""
    found = LINK.findall(page.read_text(encoding="utf-8"))
    return {os.path.relpath(page.parent / (link if link[0] != "#" else page.name + link), ROOT) for link in found}


def plain(text: str) -> str:
    """A text with single blanks, and without the words in quotes and the numbers that are asked for."""
    return re.sub(r'"[^"]*"|(?<=--vector )[\d.,]+', "", " ".join(text.split()))


EVERY = [pytest.param(one, id=f"{job.stem}: {one.asked}") for job in JOBS for one in questions(job)]


@pytest.mark.parametrize("question", EVERY)
def test_the_path_of_a_question_leads_from_readme_to_what_answers_it(question: Question) -> None:
    """Each page links to the next, and the last section has the words, the commands, or examples that tests run."""
    assert question.paths
    for path in question.paths:
        for step, after in itertools.pairwise(path):
            page, found = step.partition("#")[0], after.partition("#")
            on_the_page = found[0] == page and found[2] in dict(sections(ROOT / page))
            assert on_the_page or after in linked(ROOT / page), f"{page} does not lead to {after}"
    answered = [plain(section(path[-1])) for path in question.paths]
    said = question.quotes + [line[2:] for line, _ in question.commands if line[0] == "$" and line != "$ ..."]
    for words in said:
        assert any(plain(words) in text for text in answered), f"{words!r} is not in {question.paths}"
    examples = [path[-1].partition("#")[0] for path in question.paths if "```pycon" in section(path[-1])]
    assert question.quotes or question.commands or examples, "nothing answers it"
    assert {ROOT / page for page in examples} <= {ROOT / "README.md", *PAGES}


def test_links_between_pages_lead_somewhere() -> None:
    """Every page and anchor that README, a page of docs or an example links to is there."""
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
        *ROOT.glob("data/*/README.md"),
    ]
    for page in pages:
        for link in linked(page):
            name, _, anchor = link.partition("#")
            if ":" not in link:
                assert (ROOT / name).exists(), (page, link)
                assert not anchor or anchor in dict(sections(ROOT / name)), (page, link)


def written(path: Path, head: str, rows: Iterable[Iterable[object]]) -> None:
    """A table as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head.split(","), *rows])


def desk(known: list[tuple[str, str]], asked: list[tuple[str, str]], others: list[str]) -> None:
    """The files of a help desk."""
    lines = [json.dumps({"question": question, "intent": intent}) for question, intent in known]
    Path("intents.jsonl").write_text("\n".join(lines), encoding="utf-8")
    written(Path("test.csv"), "question,intent", asked)
    written(Path("others.csv"), "question", [[one] for one in others])


def support() -> None:
    """Questions that people asked, of 40 intents, with each tenth of the others as strangers."""
    train, test = clinc150()
    intents = set(sorted({one.intent for one in train})[:40])
    known, asked = ([(*one,) for one in part if one.intent in intents] for part in (train, test))
    desk(known, asked, [one.question for one in test if one.intent not in intents][::10])


def small_desk() -> None:
    """The questions that ship."""
    told = load("intents")
    with (ROOT / "data" / "intents" / "questions.csv").open(encoding="utf-8") as file:
        known = [(one["question"], one["intent"]) for one in csv.DictReader(file)]
    asked = [(question, intent) for intent, each in told["asked"].items() for question in each]
    desk(known, asked, told["strange"])


def numbers() -> None:
    """442 patients that scikit-learn brings along."""
    found = load_diabetes(scaled=False)
    rows = [[*map(float, row), float(target)] for row, target in zip(found.data, found.target, strict=True)]
    for name, part in (("patients.csv", rows[:342]), ("test.csv", rows[342:])):
        written(Path(name), ",".join([*found.feature_names, "progression"]), part)
    Path("vectors.txt").write_text("".join(",".join(map(str, row[:-1])) + "\n" for row in rows[342:345]))


def million() -> None:
    """Five thousand vectors, which is enough for a path."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((100, 16))[rng.integers(0, 100, 5_000)] + 0.4 * rng.standard_normal((5_000, 16))
    np.savez("vectors.npz", vectors=vectors, values=vectors[:, 0])


def teaching() -> None:
    """Nothing: all that is needed is on the pages."""


def operating() -> None:
    """A store of films, and a directory for backups."""
    for name in ("srv", "backups"):
        Path(name).mkdir()
    with softkv.open("srv/films.softkv") as db:
        plots = ["A boy and his uncle search an island for what pirates buried there", "Two sisters race down a river"]
        db.add(["The Lost Map", "Two Boats", "The River"], [5.0, 3.0, 4.0], texts=[*plots, "A town moves uphill"])


def damage() -> None:
    """What a failing disk does to the key of one item."""
    (keys,) = Path("srv/films.softkv").rglob("keys*")
    content = bytearray(keys.read_bytes())
    content[-1] ^= 255
    keys.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize(
    "job", [pytest.param(job, id=job.stem, marks=[pytest.mark.ci] * (job.stem == LONG)) for job in JOBS]
)
def test_a_job_is_done_by_the_commands_of_the_pages(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The commands of the sections, one after the other, print what the job says."""
    if job.stem == "support":
        request.getfixturevalue("real_data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    globals()[job.stem]()
    for question in questions(job):
        for line, printed in question.commands:
            if line == "! damage":
                damage()
                continue
            shell = "".join(SHELL.findall(section(question.paths[0][-1]))) if line == "$ ..." else line[2:]
            for word, other in {**SMALLER, "/srv/": f"{tmp_path}/srv/", "/backups": f"{tmp_path}/backups"}.items():
                shell = shell.replace(word, other)
            done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, encoding="utf-8")
            said = f"{done.stdout}{done.stderr}exit {done.returncode}\n"
            expected = printed if any(one.startswith("exit ") for one in printed) else [*printed, "exit 0"]
            assert [one for one in expected if one not in said] == [], f"{question.asked}\n{shell}\n{said}"
