"""What a guard keeps: `SOFTKV_DATA=folder python -m tests.benchmarks.guard [evidence coverage risk widths time]`.

Each store learns once, from a part that no split touches; all else is asked of it once, and splits divide what was
answered into what calibrates and what is judged. Texts are embedded once for each model and kept in `--folder`.

    evidence  which figure of an answer tells wrong answers and strangers from others: all on validation parts, the
              winner and the log mass once on test parts
    coverage  how often sets and intervals hold what is right, beside the 99% range of the beta-binomial
    risk      in how many of 200 splits no more than asked of what is known is wrong
    widths    intervals at 90% beside split conformal ones on k nearest neighbours and on gradient boosting; `--mapie`
              names the Python of an environment with MAPIE, which then makes these
    time      seconds to make a guard, and of lookups with one, beside those of a copy of the store without, in turn
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from softkv_cli.machine import machine

import softkv
from softkv.database.guarding import Examining
from softkv.guard.calibrating import Promise, calibrate, distances
from softkv.guard.guard import Guard, Seen
from softkv.guard.judged import seen_of
from softkv.learning.measures import auroc

from .filling import fresh
from .learning import MODELS, _embedded
from .questions import Questions, banking77, clinc150, intents_of, texts_of, uci

SECTIONS = ("evidence", "coverage", "risk", "widths", "time")
LEVELS, SPLITS, TRIES = (0.8, 0.9, 0.95), 20, 200
SETS = ("concrete", "energy", "kin8nm")
WRONG = (0.01, 0.02, 0.05)
POOLS = {"CLINC150": 12_000, "Banking77": 6_000}  # how many questions learn
WIDTH, KINDS = 384, ("label", "number")  # of stores that are timed
MAPIE = """
import json, sys
import numpy as np
from mapie.regression import SplitConformalRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.neighbors import KNeighborsRegressor
given, found = np.load(sys.argv[1]), {}
rest, wanted = given["rest"], given["wanted"]
models = {"10 nearest neighbours": KNeighborsRegressor(10), "gradient boosting": HistGradientBoostingRegressor()}
for name, model in models.items():
    model.fit(given["learn"], given["aims"])
    for some in given["splits"]:
        made = SplitConformalRegressor(model, confidence_level=0.9, prefit=True).conformalize(rest[some], wanted[some])
        ends = made.predict_interval(rest[~some])[1]
        found.setdefault(name, []).append(float((ends[:, 1, 0] - ends[:, 0, 0]).mean()))
print(json.dumps(found))
"""


def main() -> None:
    """Measure what was asked for, and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=SECTIONS, metavar="section", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where vectors are kept")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--mapie", metavar="PYTHON")
    parser.add_argument("--items", type=int, default=100_000, help="of the stores that are timed")
    parser.add_argument("--learned", type=int, default=15_000, help="items of the store that a guard is made of")
    parser.add_argument("--rounds", type=int, default=200, help="of the lookups that are timed")
    chosen = parser.parse_args()
    print(machine())
    if "time" in chosen.sections:
        _time(chosen.items, chosen.learned, chosen.rounds)
    if {*chosen.sections} == {"time"}:
        return
    data = Path(os.environ["SOFTKV_DATA"])
    if "evidence" in chosen.sections:
        _evidence(data, chosen.folder, chosen.models)
    if {"coverage", "risk"} & {*chosen.sections}:
        for model in chosen.models:
            for name, learned in POOLS.items():
                for way, seen, codes in _pool(data, name, chosen.folder, model):
                    if "coverage" in chosen.sections:
                        _coverage(f"{name}, {model}, {way}", seen, codes, None, 3000, learned)
                    if "risk" in chosen.sections:
                        _risk(f"{name}, {model}, {way}", seen, codes, learned)
    for name in SETS if {"coverage", "widths"} & {*chosen.sections} else ():
        _regression(data, name, chosen.sections, chosen.mapie)


# Which evidence


def figures(answers: Any) -> dict[str, Any]:
    """What an answer may be judged by, the more the better known."""
    logits, shares = answers.scores / answers.temperature, np.asarray(answers.value, np.float64).max(1)
    logit = np.log(shares) - np.log(np.maximum(1.0 - shares, 1e-7))
    found = {
        "log mass": answers.log_mass,
        "best score": logits[:, 0],
        "mean of the 10 best": logits.mean(1),
        "10th score": logits[:, -1],
        "largest share": shares,
        "effective number": -answers.effective,
    }
    found |= {f"log mass + {n} log share": answers.log_mass + n * np.log(shares) for n in (1, 4, 8)}
    found |= {f"log mass + {n} logit share": answers.log_mass + n * logit for n in (1, 2, 4)}
    return found


def answered(evidence: Any, right: Any, share: float) -> float:
    """The share of queries that can be answered so that no more than this share of them is wrong."""
    wrong = np.cumsum(~right[np.argsort(-evidence, kind="stable")]) / np.arange(1, len(right) + 1)
    return float((np.flatnonzero(wrong <= share).max(initial=-1) + 1) / len(right))


def _tasks(data: Path) -> dict[str, tuple[Questions, Questions, list[str], Questions, list[str]]]:
    """Items, queries and strangers to choose by, queries and strangers to judge by."""
    clinc, rng = clinc150(data), np.random.default_rng(0)
    trained, judged = banking77(data).values()
    away = set(rng.permutation(sorted({label for _, label in clinc["train"]}))[:30].tolist())
    inside = {part: [one for one in clinc[part] if one[1] not in away] for part in ("train", "val", "test")}
    out = {part: [text for text, label in clinc[part] if label in away] for part in ("val", "test")}
    mixed = rng.permutation(len(trained))
    items, val = ([trained[n] for n in some] for some in (mixed[2000:], mixed[:2000]))
    texts = {name: texts_of(clinc[name]) for name in ("val", "test", "oos_val", "oos_test")}
    return {
        "CLINC150, out of scope": (clinc["train"], clinc["val"], texts["oos_val"], clinc["test"], texts["oos_test"]),
        "CLINC150, 30 intents left out": (inside["train"], inside["val"], out["val"], inside["test"], out["test"]),
        "Banking77 by CLINC150": (items, val, texts["val"], judged, texts["test"]),
        "CLINC150 by Banking77": (clinc["train"], clinc["val"], texts_of(val), clinc["test"], texts_of(judged)),
    }


def _evidence(data: Path, folder: Path, models: list[str]) -> None:
    scores: dict[str, list[float]] = {}
    judged: list[tuple[str, dict[str, Any], Any, dict[str, Any]]] = []
    for model in models:
        for task, (items, val, strange, test, strangers) in _tasks(data).items():
            name = f"{task}-{model}".replace(" ", "-").replace(",", "")
            vectors = [_embedded(folder, f"{name}-{part}", MODELS[model], texts_of(texts))
                       for part, texts in (("items", items), ("val", val), ("test", test))]  # fmt: skip
            others = [_embedded(folder, f"{name}-{part}", MODELS[model], texts)
                      for part, texts in (("strange", strange), ("strangers", strangers))]  # fmt: skip
            for way, db in _learned(vectors[0], intents_of(items), "label", "cosine"):
                asked = [db.lookup(x, show=10, tolerance=0) for x in (vectors[1], others[0], vectors[2], others[1])]
                found, outside = figures(asked[0]), figures(asked[1])
                right = np.array(asked[0].label) == intents_of(val)
                for figure, evidence in found.items():
                    told = [auroc(evidence, outside[figure]), *(answered(evidence, right, one) for one in WRONG)]
                    scores.setdefault(figure, []).append((told[0] + told[2]) / 2)
                    print(f"validation | {task}, {model}, {way} | {figure} | " + " | ".join(f"{x:.3f}" for x in told))
                truth = np.array(asked[2].label) == intents_of(test)
                judged.append((f"{task}, {model}, {way}", figures(asked[2]), truth, figures(asked[3])))
    means = {figure: float(np.mean(one)) for figure, one in scores.items()}
    best = max(means, key=lambda figure: means[figure])
    print(f"\nmean of AUROC and of the share answered at 2% wrong, on validation parts: {means}\nchosen: {best}\n")
    print("| test part | evidence | AUROC | answered at 1% wrong | 2% | 5% |\n|---|---|---|---|---|---|")
    for task, found, right, outside in judged:
        for figure in ("log mass", best):
            told = [auroc(found[figure], outside[figure]), *(answered(found[figure], right, one) for one in WRONG)]
            print(f"| {task} | {figure} | " + " | ".join(f"{x:.3f}" for x in told) + " |")


# What was answered once


def _learned(vectors: Any, values: Any, kind: str, compatibility: str) -> Iterator[tuple[str, softkv.SoftKV]]:
    """A store of these items, tuned and then fitted, from all of them: what is asked is no item."""
    with fresh(kind, compatibility) as db:
        db.add(vectors=vectors, values=values)
        db.tune(hold_out=0)
        yield "tuned", db
        db.fit(hold_out=0)
        yield "fitted", db


def _pool(data: Path, name: str, folder: Path, model: str) -> Iterator[tuple[str, Seen, Any]]:
    """A set of questions as one pool, of which some learn, and what the store answers the others, once."""
    parts = banking77(data) if name == "Banking77" else clinc150(data)
    questions = [one for part in ("train", "val", "test") for one in parts.get(part, ())]
    vectors = _embedded(folder, f"{name}-pool-{model}", MODELS[model], texts_of(questions))
    labels, order = np.array(intents_of(questions)), np.random.default_rng(0).permutation(len(questions))
    learn, rest = np.split(order, [POOLS[name]])
    for way, db in _learned(vectors[learn], labels[learn].tolist(), "label", "cosine"):
        answers = db.lookup(vectors[rest], show=1, tolerance=0)
        places = {name: code for code, name in enumerate(answers.labels)}
        yield way, seen_of(answers), np.array([places[one] for one in labels[rest].tolist()])


def _guard(seen: Seen, aims: Any, some: Any, widths: Any, items: int, wrong: float = 0.5) -> Guard:
    promise = Promise(wrong, None, 0.95)
    return calibrate(seen.taken(some), aims[some], None, promise, coded=widths is None, widths=widths, items=items)


def _splits(count: int, calibrate: int, tries: int) -> Iterator[tuple[Any, Any]]:
    """What calibrates and what is judged, as masks."""
    for seed in range(tries):
        some = np.zeros(count, np.bool_)
        some[np.random.default_rng(seed).permutation(count)[:calibrate]] = True
        yield some, ~some


def _range(level: float, calibrate: int, judged: int) -> tuple[float, float]:
    """The range of 99% of the beta-binomial distribution of coverage."""
    rank = np.ceil(round((calibrate + 1) * level, 9))
    rng = np.random.default_rng(0)
    drawn = rng.binomial(judged, rng.beta(rank, calibrate + 1 - rank, 200_000)) / judged
    low, high = np.quantile(drawn, [0.005, 0.995])
    return float(low), float(high)


def _coverage(name: str, seen: Seen, aims: Any, widths: Any, calibrate: int, items: int) -> None:
    count = len(aims)
    print(f"\n{name}: {SPLITS} splits, {calibrate:,} calibrate and {count - calibrate:,} are judged")
    print("| promised | held, mean | least, most | 99% range | within it | below it | by tenth of difficulty |")
    print("|---|---|---|---|---|---|---|")
    for level in LEVELS:
        shares, tenths = [], []
        for some, others in _splits(count, calibrate, SPLITS):
            guard, asked = _guard(seen, aims, some, widths, items), seen.taken(others)
            if widths is None:
                held = guard.labels_within(asked, level)[np.arange(len(asked.value)), aims[others]]
                hard = -asked.value.max(1)
            else:
                hard = guard.radius(asked, level)
                held = distances(asked.value, aims[others]) <= hard
            shares.append(held.mean())
            tenths.append([held[part].mean() for part in np.array_split(np.argsort(hard, kind="stable"), 10)])
        low, high = _range(level, calibrate, count - calibrate)
        inside = sum(low <= one <= high for one in shares)
        told = " ".join(f"{100 * one:.0f}" for one in np.mean(tenths, 0))
        print(
            f"| {level:.0%} | {np.mean(shares):.3f} | {min(shares):.3f}, {max(shares):.3f} | {low:.3f}, {high:.3f} | "
            f"{inside} of {SPLITS} | {sum(one < low for one in shares)} | {told} |"
        )


def _risk(name: str, seen: Seen, codes: Any, items: int) -> None:
    right = seen.value.argmax(1) == codes
    print(f"\n{name}: {right.mean():.1%} right, {TRIES} splits, 3,000 calibrate")
    print("| wrong at most | kept in splits (goal: 184) | known, mean | wrong of these, mean | promised nothing |")
    print("|---|---|---|---|---|")
    for share in WRONG:
        kept, known, wrong, none = 0, [], [], 0
        for some, others in _splits(len(codes), 3000, TRIES):
            try:
                guard = _guard(seen, codes, some, None, items, share)
            except softkv.errors.InputError:  # nothing is known then, so nothing is wrong
                none, kept = none + 1, kept + 1
                continue
            sure = np.asarray(guard.known(seen.taken(others)), np.bool_)
            known.append(sure.mean())
            wrong.append((~right[others][sure]).mean())
            kept += bool(wrong[-1] <= share)
        print(f"| {share:.0%} | {kept} of {TRIES} | {np.mean(known):.3f} | {np.mean(wrong):.4f} | {none} |")


def _regression(data: Path, name: str, sections: list[str], mapie: str | None) -> None:
    """A UCI set: 60% learn, and the rest is split evenly into what calibrates and what is judged."""
    features, numbers = uci(data, name)
    order = np.random.default_rng(0).permutation(len(numbers))
    learn, rest = np.split(order, [int(0.6 * len(order))])
    keys = (features - features[learn].mean(0)) / (features[learn].std(0) + 1e-12)
    aims = numbers[rest]
    theirs = _mapies(mapie, keys, numbers, learn, rest) if mapie and "widths" in sections else {}
    for way, db in _learned(keys[learn], numbers[learn], "number", "gaussian"):
        with db.snapshot() as frozen:
            widths = Examining(frozen, frozen._asked_view(), None).widths(None)
        seen = seen_of(db.lookup(keys[rest], show=1, tolerance=0))
        title = f"{name}, {way}, RMSE {np.sqrt(np.mean((seen.value - aims) ** 2)):.4g}"
        if "coverage" in sections:
            _coverage(title, seen, aims, widths, len(aims) // 2, len(learn))
        if "widths" in sections:
            _widths(title, (keys, numbers, learn, rest), seen, widths, theirs)


def _mapies(python: str, keys: Any, numbers: Any, learn: Any, rest: Any) -> dict[str, list[float]]:
    """The mean width of the intervals of MAPIE in each split, by what it is calibrated on top of."""
    splits = np.array([some for some, _ in _splits(len(rest), len(rest) // 2, SPLITS)])
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        np.savez(file, learn=keys[learn], aims=numbers[learn], rest=keys[rest], wanted=numbers[rest], splits=splits)
        file.flush()
        run = subprocess.run([python, "-c", MAPIE, file.name], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, list[float]] = json.loads(run.stdout)
    return found


def _widths(title: str, split: tuple[Any, Any, Any, Any], seen: Seen, rule: Any, theirs: dict[str, Any]) -> None:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.neighbors import KNeighborsRegressor

    keys, numbers, learn, rest = split
    aims, widths = numbers[rest], dict[str, list[float]]()
    models = {"10 nearest neighbours": KNeighborsRegressor(10), "gradient boosting": HistGradientBoostingRegressor()}
    found = {name: model.fit(keys[learn], numbers[learn]).predict(keys[rest]) for name, model in models.items()}
    for some, others in _splits(len(aims), len(aims) // 2, SPLITS):
        guard = _guard(seen, aims, some, rule, len(learn))
        widths.setdefault("softkv", []).append(float(2 * guard.radius(seen.taken(others), 0.9).mean()))
        for name, values in found.items():  # as MAPIE's SplitConformalRegressor: absolute residuals
            apart = np.sort(np.abs(values[some] - aims[some]))
            rank = int(np.ceil((len(apart) + 1) * 0.9)) - 1
            widths.setdefault(name, []).append(2 * float(apart[rank]))
    ours = np.mean(widths.pop("softkv"))
    told = ", ".join(f"{ours / np.mean(one):.2f} x that on {name}" for name, one in widths.items())
    print(f"{title}: intervals at 90% are {ours:.4g} wide, {told}")
    for name, made in theirs.items():
        apart = np.max(np.abs(np.divide(made, widths[name]) - 1.0))
        print(f"  by MAPIE {ours / np.mean(made):.2f} x that on {name}, whose widths differ by {apart:.2%} at most")


# Time


def _time(items: int, learned: int, rounds: int) -> None:
    print(f"\n| seconds, {WIDTH} wide | labels | numbers |\n|---|---|---|")
    made = [_seconds_to_make(learned, kind) for kind in KINDS]
    print(f"| to make a guard of {learned:,} items (goal: 30) | {made[0]:.1f} | {made[1]:.1f} |", flush=True)
    with tempfile.TemporaryDirectory() as place:
        told = [_seconds_to_ask(Path(place) / kind, items, kind, rounds) for kind in KINDS]
    for name in told[0]:
        print(f"| {name}, {items:,} items | " + " | ".join(one[name] for one in told) + " |")


def _drawn(count: int, kind: str, seed: int) -> tuple[Any, Any]:
    """Directions around 150 middles, and their labels or noisy numbers."""
    rng = np.random.default_rng(seed)
    middles, codes = np.random.default_rng(0).standard_normal((150, WIDTH)), rng.integers(0, 150, count)
    keys = (middles[codes] + 1.5 * rng.standard_normal((count, WIDTH))).astype(np.float32)
    return keys, [f"label {code}" for code in codes] if kind == "label" else codes + rng.standard_normal(count)


def _seconds_to_make(items: int, kind: str) -> float:
    keys, values = _drawn(items, kind, 1)
    with fresh(kind, "cosine") as db:
        db.add(vectors=keys, values=values)
        db.tune()
        start = time.perf_counter()
        db.guard(wrong_at_most=0.2)
        return time.perf_counter() - start


def _seconds_to_ask(path: Path, items: int, kind: str, rounds: int) -> dict[str, str]:
    """Of lookups of a store with a guard, and of a copy of it without; what a guard says is worked out where asked."""
    keys, values = _drawn(items, kind, 1)
    with softkv.open(path, value=kind, compatibility="cosine") as db:
        db.add(vectors=keys, values=values)
        db.guard(wrong_at_most=0.2, **dict(zip(("queries", "answers"), _drawn(1000, kind, 2), strict=True)))
    copy, queries, found = path.with_name(f"{kind} without"), _drawn(64, kind, 3)[0], dict[str, str]()
    shutil.copytree(path, copy)
    with softkv.open(path) as guarded, softkv.open(copy) as plain:
        plain.forget_guard()
        for count in (1, 64):
            rows = [_round(guarded, plain, queries[:count], n % 2) for n in range(rounds)]
            one, other, judged = (statistics.median(each) for each in zip(*rows, strict=True))
            told = f"{1e3 * one:.2f} ms, {1e3 * other:.2f} ms: {one / other:.3f} x"
            found[f"lookup of {count}, with a guard beside without (goal: 1.1)"] = told
            found[f"and `known` of {count}"] = f"{1e3 * judged:.3f} ms more: {(one + judged) / other:.3f} x"
    return found


def _round(guarded: softkv.SoftKV, plain: softkv.SoftKV, queries: Any, first: int) -> tuple[float, float, float]:
    """Seconds of a lookup with a guard and without, and of what the guard says of the answers."""
    told = dict[str, float]()
    for name, db in (("guarded", guarded), ("plain", plain))[:: -1 if first else 1]:
        start = time.perf_counter()
        answers = db.lookup(queries)
        told[name] = time.perf_counter() - start
        if db is guarded:
            known, told["judged"] = answers.known, time.perf_counter() - start - told[name]
            assert known is not None
    return told["guarded"], told["plain"], told["judged"]


if __name__ == "__main__":
    main()
