"""What learning is worth on real tasks: `SOFTKV_DATA=folder python -m tests.benchmarks.learning [clinc banking uci]`.

Texts are embedded once for each model and kept in `--folder`. Everything is chosen on training items alone, by
leave-one-out; test items are looked at once, by `evaluate`. The regressions are the means over the 20 standard splits.

Does not judge time: that of `fit` is printed, and depends on the machine and its other users.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from softkv_cli.machine import machine

from .filling import fresh
from .index_report import HEAD, Goal, at_least, at_most
from .questions import Questions, banking77, clinc150, intents_of, texts_of, uci

PARTS = ("clinc", "banking", "uci")
MODELS = {"MiniLM": "all-MiniLM-L6-v2", "static": "static"}
SETS = {"energy": 0.70, "concrete": 5.4, "kin8nm": 0.082}  # the RMSE to reach


def main() -> None:
    """Measure what was asked for, and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="part", help=f"of {', '.join(PARTS)}; else all")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where vectors are kept")
    parser.add_argument("--splits", type=int, default=20, help="of the regressions")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    data = Path(os.environ["SOFTKV_DATA"])
    print(machine())
    if "clinc" in chosen.parts:
        for name in MODELS:
            _clinc(data, chosen.folder, name, chosen.seed)
    if "banking" in chosen.parts:
        _banking(data, chosen.folder, chosen.seed)
    if "uci" in chosen.parts:
        for name in SETS:
            _uci(data, name, chosen.splits, chosen.seed)


def _clinc(data: Path, folder: Path, model: str, seed: int) -> None:
    parts = clinc150(data)
    goals: dict[str, dict[str, Goal]] = {
        "full soft": {"accuracy": at_least(0.910), "log_loss": at_most(0.40), "calibration_error": at_most(0.04)},
        "learned": {"accuracy": at_least(0.940), "log_loss": at_most(0.26), "auroc": at_least(0.970)},
    }
    if model == "static":
        goals = {"learned": {"accuracy": at_least(0.910)}}
    _labels(folder, "clinc", model, parts["train"], parts["test"], texts_of(parts["oos_test"]), goals, seed)


def _banking(data: Path, folder: Path, seed: int) -> None:
    parts = banking77(data)
    goals = {"learned": {"accuracy": at_least(0.920)}}
    _labels(folder, "banking", "MiniLM", parts["train"], parts["test"], [], goals, seed)


def _labels(
    folder: Path,
    task: str,
    model: str,
    train: Questions,
    test: Questions,
    strangers: list[str],
    goals: dict[str, dict[str, Goal]],
    seed: int,
) -> None:
    embedded = {
        name: _embedded(folder, f"{task}-{model}-{name}", MODELS[model], texts)
        for name, texts in (("train", texts_of(train)), ("test", texts_of(test)), ("strangers", strangers))
    }
    with fresh("label", "cosine") as db:
        db.add(vectors=embedded["train"], values=intents_of(train))
        started = time.perf_counter()
        tuned = db.tune(seed=seed)
        seconds = time.perf_counter() - started
        fitted = db.fit(seed=seed)
        outside = embedded["strangers"] if strangers else None
        found = db.evaluate(embedded["test"], intents_of(test), out_of_scope=outside)
    print(f"\n{task}, {model}, {len(train):,} items, {len(test):,} queries, seed {seed}\n{found}")
    print(f"tune {seconds:.0f} s, temperature {tuned.temperature:.4g}; {fitted}\n\n{HEAD}")
    for way in found.ways:
        for measure, goal in goals.get(way.way, {}).items():
            figure = float(getattr(way, measure))
            told = measure.replace("_", " ")
            print(f"| {way.way}: {told} | {figure:.4g} | | {goal.shown} | {goal.reached(figure)} |")


def _embedded(folder: Path, name: str, model: str, texts: list[str]) -> Any:
    """The vectors of these texts, from the folder if they are there."""
    path = folder / f"softkv-{name}.npy"
    if not path.exists():
        from softkv.embedders import find

        np.save(path, find(model).documents(texts) if texts else np.empty((0, 1), np.float32))
    return np.load(path)


def _uci(data: Path, name: str, splits: int, seed: int) -> None:
    features, numbers = uci(data, name)
    lines = (data / "uci" / name / "test_rows.txt").read_text(encoding="utf-8").splitlines()[:splits]
    found: dict[str, list[tuple[float, float]]] = {}
    seconds = []
    for line in lines:
        figures, taken = _one_split(features, numbers, np.array(line.split(), int), seed)
        seconds.append(taken)
        for way, both in figures.items():
            found.setdefault(way, []).append(both)
    told = f"{len(numbers):,} rows, {features.shape[1]} features, {len(lines)} splits, seed {seed}"
    print(f"\n{name}: {told}; fit {np.mean(seconds):.0f} s each\n\n{HEAD}")
    for way, splits_of_it in found.items():
        errors, likelihoods = np.array(splits_of_it).T
        shown = f"{errors.mean():.4g} ± {errors.std() / len(errors) ** 0.5:.2g}"
        goal = at_most(SETS[name])
        judged = f"{goal.shown} | {goal.reached(float(errors.mean()))}" if way == "learned" else " | "
        print(f"| {way}: RMSE; log-likelihood {likelihoods.mean():.3g} | {shown} | | {judged} |")


def _one_split(features: Any, numbers: Any, test: Any, seed: int) -> tuple[dict[str, tuple[float, float]], float]:
    """RMSE and log-likelihood of each way, and the seconds of `fit`."""
    train = np.setdiff1d(np.arange(len(numbers)), test)
    middle, unit = features[train].mean(0), features[train].std(0) + 1e-12
    keys = (features - middle) / unit  # for the ways that do not learn; `fit` does it by itself
    with fresh("number", "gaussian") as db:
        db.add(vectors=keys[train], values=numbers[train])
        db.tune(seed=seed)
        started = time.perf_counter()
        db.fit(seed=seed)
        seconds = time.perf_counter() - started
        ways = db.evaluate(keys[test], numbers[test]).ways[1:]  # hardly an item equals a query
    return {way.way: (way.rmse or np.nan, way.log_likelihood or np.nan) for way in ways}, seconds


if __name__ == "__main__":
    main()
