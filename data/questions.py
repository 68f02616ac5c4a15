"""Questions of real users with their intents: the data sets CLINC150 and Banking77.

Both are published under Creative Commons licences and are not part of this package. SOFTKV_DATA names the folder with
`clinc150/data_full.json`, `banking77/train.csv` and `banking77/test.csv`.
"""

import csv
import json
import os
import random
from pathlib import Path
from typing import NamedTuple


class Absent(LookupError):
    """A data set is missing; the message says which, and where to get it."""


class Asked(NamedTuple):
    """A question and its intent."""

    question: str
    intent: str


class Sample(NamedTuple):
    """Questions to put into a store, and others to look up."""

    known: list[Asked]
    asked: list[Asked]


def sample(name: str, known: int, asked: int, *, seed: int) -> Sample:
    """A random sample of the training and of the test part of `clinc150` or `banking77`."""
    train, test = clinc150() if name == "clinc150" else banking77()
    drawn = random.Random(seed)
    return Sample(drawn.sample(train, known), drawn.sample(test, asked))


def clinc150() -> tuple[list[Asked], list[Asked]]:
    """150 intents of all kinds: the training and the test part (Larson et al. 2019, CC BY 3.0)."""
    parts = json.loads(_found("clinc150", "data_full.json").read_text(encoding="utf-8"))
    return [Asked(*pair) for pair in parts["train"]], [Asked(*pair) for pair in parts["test"]]


def banking77() -> tuple[list[Asked], list[Asked]]:
    """77 intents of a bank's customers: the training and the test part (Casanueva et al. 2020, CC BY 4.0)."""
    return _rows(_found("banking77", "train.csv")), _rows(_found("banking77", "test.csv"))


def _rows(path: Path) -> list[Asked]:
    with path.open(newline="", encoding="utf-8") as lines:
        return [Asked(row["text"], row["category"]) for row in csv.DictReader(lines)]


def _found(*parts: str) -> Path:
    folder = os.environ.get("SOFTKV_DATA")
    if not folder:
        raise Absent(
            "SOFTKV_DATA is not set. It names the folder with the published data sets clinc150 (github.com/clinc/"
            "oos-eval) and banking77 (github.com/PolyAI-LDN/task-specific-datasets)."
        )
    path = Path(folder, *parts)
    if not path.is_file():
        raise Absent(f"SOFTKV_DATA is {folder}, and there is no {'/'.join(parts)} in it.")
    return path
