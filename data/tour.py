"""The worked examples as a tour in the page: a scene for each, and steps through them.

The steps are in tour.json: the scene, a title, sentences, the state of the page, and the panels to show first. Each
scene is made from a temporary store, like the page of any store.
"""

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import softkv

from . import example, load, scratch, titles


class Play(NamedTuple):
    """The store of a scene: the options by which it is opened, its items, and the queries."""

    example: str
    how: dict[str, Any]
    items: dict[str, Any]
    queries: Any
    names: Sequence[str] = ()  # of queries that are vectors
    heads: Any = None


def content(names: Sequence[str] = ()) -> dict[str, Any]:
    """The scenes of these examples, or of all, and the steps through them, as the page takes them."""
    known = titles()
    made = (_scene(name, play, known) for name, play in PLAYS.items())
    scenes = [scene for scene in made if not names or scene["example"] in names]
    steps = json.loads((Path(__file__).parent / "tour.json").read_text(encoding="utf-8"))
    there = {scene["name"] for scene in scenes}
    return {"scenes": scenes, "steps": [step for step in steps if step["scene"] in there]}


def _scene(name: str, play: Callable[[], Play], known: dict[str, str]) -> dict[str, Any]:
    example, how, items, queries, named, heads = play()
    with softkv.open(scratch(f"{name}.softkv"), **how) as db:
        db.add(**items)
        scene = db.scene(queries=queries, heads=heads)
    for query, called in zip(scene["queries"], named, strict=bool(named)):
        query["name"] = called
    return scene | {"name": name, "example": example, "title": known[example]}


def _incomes() -> Play:
    people = load("incomes")

    def letters(texts: Sequence[str]) -> list[list[float]]:
        return [[float(text.lower().count(one)) for one in people["letters"]] for text in texts]

    how = {"compatibility": "gaussian", "temperature": people["temperature"], "embedder": letters}
    return Play("incomes", how, {"keys": people["names"], "values": people["incomes"]}, ["Hana", "Nathaniel Hathaway"])


def _books(values: str, asked: str, **how: Any) -> Play:
    shelf = load("books")
    items = {"keys": list(shelf[values]), "values": list(shelf[values].values())}
    return Play("books", {"temperature": shelf["temperature"], **how}, items, [shelf[asked]])


def _hours() -> Play:
    day = load("hours")
    how = {"compatibility": "gaussian", "temperature": day["bandwidth"] ** 2}
    clock, times = [f"{hour:02.0f}:00" for hour in day["hours"]], [[hour] for hour in day["hours"]]
    items = {"keys": clock, "values": day["degrees"], "vectors": times}
    return Play("hours", how, items, [[12.0], [12.5]], ["noon", "half past twelve"])


def _car() -> Play:
    car = load("car")
    items = {"keys": car["features"], "values": car["values"], "vectors": np.diag(car["keys"])}
    names = [f"vehicle {number + 1}" for number in range(len(car["queries"]))]
    return Play("car", {"compatibility": "dot", "temperature": 1.0}, items, car["queries"], names)


def _words() -> Play:
    data = load("words")
    keys = [
        f"{word} ({place + 1})" if data["words"].count(word) > 1 else word for place, word in enumerate(data["words"])
    ]
    items = {"keys": keys, "values": data["values"], "vectors": data["keys"]}
    return Play("words", {"compatibility": "scaled_dot", "temperature": 1.0}, items, [data["query"]], ["slept"])


def _ways(compatibility: str) -> Play:
    data = load("ways")
    items = {"keys": ["a", "b", "c"], "values": data["values"], "vectors": data["keys"]}
    how = {"compatibility": compatibility, "temperature": 1.0}
    return Play("ways", how, items, data["queries"], ["(1, 2)", "(0, −1)"])


def _apple() -> Play:
    data = load("apple")
    items = {"keys": data["sentence"], "values": data["values"], "vectors": data["keys"]}
    names = [f"{word}, of the other sentence" for word in data["other_sentence"]]
    return Play("apple", {"compatibility": "dot", "temperature": data["temperature"]}, items, data["other_keys"], names)


def _translation() -> Play:
    data = load("translation")
    queries = np.array(data["decoder_states"]) @ np.array(data["bilinear_matrix"])  # qᵀWk is (Wᵀq)·k
    items = {"keys": data["source"], "values": data["encoder_states"], "vectors": data["encoder_states"]}
    how = {"compatibility": "dot", "temperature": data["temperature"]}
    return Play("translation", how, items, queries, data["target"])


def _heads() -> Play:
    data = load("heads")
    w_q, w_k, w_v = np.array(data["in_projection"]).reshape(3, 2, 2, 4)
    b_q, b_k, b_v = np.array(data["in_offset"]).reshape(3, 2, 2)
    heads = softkv.Heads(w_q, w_k, w_v, np.array(data["out_projection"]), b_q, b_k, b_v, np.array(data["out_offset"]))
    items = {"keys": data["words"], "values": data["vectors"], "vectors": data["vectors"]}
    return Play("heads", {"compatibility": "dot"}, items, [], (), heads)


def _intents() -> Play:
    desk = load("intents")
    with (example("intents") / "questions.csv").open(newline="", encoding="utf-8") as lines:
        known = list(csv.DictReader(lines))
    items = {"texts": [one["question"] for one in known], "values": [one["intent"] for one in known]}
    return Play("intents", {"value": "label"}, items, [desk["asked"]["lost card"][0], desk["strange"][0]])


PLAYS: dict[str, Callable[[], Play]] = {
    "incomes": _incomes,
    "books": lambda: _books("books", "question"),
    "videos": lambda: _books("videos", "wish", value="label"),
    "hours": _hours,
    "car": _car,
    "words": _words,
    "ways": lambda: _ways("dot"),
    "near": lambda: _ways("laplace"),
    "apple": _apple,
    "translation": _translation,
    "heads": _heads,
    "intents": _intents,
}
