"""Published data sets that benchmarks ask: questions with their intents, and regressions of the UCI repository.

`data` is the folder that SOFTKV_DATA names.
"""

import csv
import json
from pathlib import Path

import numpy as np

from softkv.ndarrays import Floats

Questions = list[tuple[str, str]]  # texts and their intents


def clinc150(data: Path) -> dict[str, Questions]:
    """All parts of CLINC150, those that are out of scope included."""
    parts = json.loads((data / "clinc150" / "data_full.json").read_text(encoding="utf-8"))
    return {name: [(text, intent) for text, intent in part] for name, part in parts.items()}


def banking77(data: Path) -> dict[str, Questions]:
    """The training and the test part of Banking77."""
    found = {}
    for part in ("train", "test"):
        with (data / "banking77" / f"{part}.csv").open(newline="", encoding="utf-8") as lines:
            found[part] = [(row["text"], row["category"]) for row in csv.DictReader(lines)]
    return found


def texts_of(questions: Questions) -> list[str]:
    """The texts alone."""
    return [text for text, _ in questions]


def intents_of(questions: Questions) -> list[str]:
    """The intents alone."""
    return [intent for _, intent in questions]


def uci(data: Path, name: str) -> tuple[Floats, Floats]:
    """The features, (n, d), and the targets, (n,), of a regression."""
    folder = data / "uci" / name
    table = np.loadtxt(folder / "data.txt")
    features = table[:, np.loadtxt(folder / "index_features.txt").astype(int)]
    return features, table[:, int(np.loadtxt(folder / "index_target.txt"))]
