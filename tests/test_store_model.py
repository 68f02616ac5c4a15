"""A store does what a dict would do: random sequences of calls against a model that knows every answer.

The model is an ordered dict in memory. After every step the writer and a reader that was opened apart must both say
what the model says, and every snapshot still open must say what the model said when it was taken. Each sequence runs
once with the windows and bitmaps of real stores and once with tiny ones, so that their edges are met all the time.
"""

import copy
import json
import math
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from softkv.errors import DuplicateKey, InputError, KeyMissing
from softkv.storage import Snapshot, Store
from tests.stores import names_by_row, wrong_index
from tests.tiny import shrink

pytestmark = pytest.mark.slow

KEY_WIDTH, VALUE_WIDTH = 3, 2
NOBODY = ["nobody has this", "#999999", "#0", "#01", "#١", "#x", "#"]
KINDS = ("number", "vector", "label", "text")

singles = st.floats(width=32, allow_nan=False, allow_infinity=False)
doubles = st.floats(min_value=-1e150, max_value=1e150) | st.integers(-5, 5).map(float)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
free_keys = texts.filter(lambda text: not text.startswith("#"))
keys = st.sampled_from(["a", "b", "c", "d", "ä", '"', "\\", ""]) | st.integers(0, 9).map(str) | free_keys
payloads = st.none() | st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=3,
)


@dataclass(frozen=True)
class Given:
    """One item as it goes in: what must come out again."""

    key: str | None
    vector: list[float]
    value: Any  # a number, a list of numbers, or a text
    cells: list[float] | None  # the embedding that goes with a text value
    payload: Any
    text: str | None


@st.composite
def one_item(draw: st.DrawFn, kind: str) -> Given:
    """An item of a store of this kind."""
    numbers = st.lists(singles, min_size=VALUE_WIDTH, max_size=VALUE_WIDTH)
    values = {"number": doubles, "vector": numbers, "label": st.sampled_from(["x", "y", "é"]) | texts, "text": texts}
    return Given(
        draw(st.none() | keys),
        draw(st.lists(singles, min_size=KEY_WIDTH, max_size=KEY_WIDTH)),
        draw(values[kind]),
        draw(numbers) if kind == "text" else None,
        draw(payloads),
        draw(st.none() | texts),
    )


@dataclass
class Model:
    """What the store must hold: items by name, in the order of the store."""

    items: dict[str, Given] = field(default_factory=dict)
    next_number: int = 1
    settings: dict[str, Any] = field(default_factory=dict)

    def refuses(self, batch: list[Given]) -> set[str]:
        """The keys for which a batch is refused when conflicts are errors."""
        named = [item.key for item in batch if item.key is not None]
        return {key for key in named if named.count(key) > 1 or key in self.items}

    def add(self, batch: list[Given], on_conflict: str) -> tuple[int, int, int]:
        """Take the items in; returns how many were stored, replaced existing ones, and were passed over."""
        chosen: dict[object, Given] = {}
        for position, item in enumerate(batch):
            name: object = position if item.key is None else item.key
            if on_conflict == "replace" or name not in chosen:
                chosen[name] = item
        if on_conflict == "ignore":
            chosen = {name: item for name, item in chosen.items() if item.key is None or item.key not in self.items}
        replaced = sum(item.key in self.items for item in chosen.values())
        for item in chosen.values():
            self.items[f"#{self.next_number}" if item.key is None else item.key] = item
            self.next_number += 1
        return len(chosen), replaced, len(batch) - len(chosen) if on_conflict == "ignore" else 0


class StoreMachine(RuleBasedStateMachine):
    """A writer, a reader, snapshots of both, and the model."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.folder = Path(tempfile.mkdtemp(prefix="softkv-model-"))
        self.path = self.folder / "model.softkv"
        self.model = Model()
        self.commits = 0
        self.snapshots: list[tuple[Store, Snapshot, Model]] = []
        self.writer = Store.open(self.path, "c")
        self.reader = Store.open(self.path, "r")

    def teardown(self) -> None:
        """At the end the store is sound, opens again, and nothing is left lying about."""
        try:
            self.close_snapshots_of(self.reader, self.writer)
            assert self.writer.check().ok, self.writer.check()
            self.reader.close()
            self.writer.close()
            with Store.open(self.path, "w") as store:
                agree(store.snapshot(), self.model)
                report = store.check()
            assert report.ok, report
            assert not report.notes, report
        finally:
            shutil.rmtree(self.folder)

    @rule(data=st.data(), on_conflict=st.sampled_from(["error", "replace", "replace", "ignore"]))
    def append(self, data: st.DataObject, on_conflict: str) -> None:
        """A batch goes in as one, or is refused as one."""
        batch = data.draw(st.lists(one_item(self.kind), min_size=1, max_size=12))
        refused = self.model.refuses(batch) if on_conflict == "error" else set()
        if refused:
            with pytest.raises(DuplicateKey) as caught:
                self.write(batch, on_conflict)
            assert set(caught.value.keys) <= refused
            return
        added = self.write(batch, on_conflict)
        first = self.model.next_number
        assert (added.count, added.replaced, added.ignored) == self.model.add(batch, on_conflict)
        assert added.first_number == first

    @rule(data=st.data())
    def append_what_cannot_be(self, data: st.DataObject) -> None:
        """One bad item among good ones keeps all of them out."""
        batch = data.draw(st.lists(one_item(self.kind), min_size=1, max_size=3))
        bad = data.draw(
            st.sampled_from([{"key": "#1"}, {"key": "a\0b"}, {"vector": [1.0, math.nan, 0.0]}, {"payload": {"x": {1}}}])
        )
        fields = {name: getattr(batch[0], name) for name in ("key", "vector", "value", "cells", "payload", "text")}
        with pytest.raises(InputError):
            self.write([*batch, Given(**{**fields, **bad})], "replace")

    @precondition(lambda self: self.model.items)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """Items go by key or number, all of them or none."""
        names = data.draw(st.lists(st.sampled_from(list(self.model.items)), min_size=1, max_size=8))
        if data.draw(st.integers(0, 5)) == 0:
            with pytest.raises(KeyMissing):
                self.writer.delete([*names, data.draw(st.sampled_from(NOBODY))])
            return
        assert self.writer.delete(names) == len(set(names))
        for name in set(names):
            del self.model.items[name]

    @precondition(lambda self: self.model.items)
    @rule()
    def delete_everything(self) -> None:
        """A store may become empty again."""
        assert self.writer.delete(list(self.model.items)) == len(self.model.items)
        self.model.items.clear()

    @rule()
    def compact(self) -> None:
        """Compaction changes nothing that can be asked, and leaves no dead rows."""
        self.writer.compact()
        assert self.writer.rows == len(self.model.items)

    @precondition(lambda self: self.writer.layout)
    @rule(seed=st.integers(0, 2**32), indexed=st.booleans())
    def reorder(self, seed: int, indexed: bool) -> None:
        """Rows may lie in any order, with a file beside them that knows it; nothing that can be asked changes."""
        order = np.random.default_rng(seed).permutation(np.flatnonzero(self.writer.live))
        vectors, names = self.writer.vectors(order), names_by_row(self.writer, order)
        self.writer.compact(order, index={"names": names} if indexed else None)
        assert np.array_equal(self.writer.vectors(range(self.writer.rows)), vectors)
        assert (self.writer.snapshot().index("names") is not None) == indexed

    @precondition(lambda self: self.writer.layout)
    @rule()
    def put_index(self) -> None:
        """A file of the rows as they are now, which later rows and deaths do not change."""
        self.writer.put_index("names", names_by_row(self.writer, range(self.writer.rows)))
        assert self.writer.snapshot().index("names") is not None

    @precondition(lambda self: len(self.model.items) > 1)
    @rule(data=st.data())
    def shrink(self, data: st.DataObject) -> None:
        """Generations follow each other while snapshots still hold the first."""
        for name in list(self.model.items)[:: data.draw(st.integers(2, 4))]:
            assert self.writer.delete(name) == 1
            del self.model.items[name]
        self.compact()

    @rule(kept=st.dictionaries(texts, payloads, max_size=3))
    def configure(self, kept: dict[str, Any]) -> None:
        """Settings are replaced whole."""
        self.writer.configure(kept)
        self.model.settings = kept

    @rule()
    def reopen_writer(self) -> None:
        """Closing and opening changes nothing, for the snapshots of others neither."""
        self.close_snapshots_of(self.writer)
        self.writer.close()
        self.writer = Store.open(self.path, "w")

    @rule()
    def reopen_reader(self) -> None:
        """A reader may come and go."""
        self.close_snapshots_of(self.reader)
        self.reader.close()
        self.reader = Store.open(self.path, "r")

    @precondition(lambda self: len(self.snapshots) < 3)
    @rule(by_writer=st.booleans())
    def take_snapshot(self, by_writer: bool) -> None:
        """A snapshot keeps the store as it is now."""
        store = self.writer if by_writer else self.reader
        self.snapshots.append((store, store.snapshot(), copy.deepcopy(self.model)))

    @precondition(lambda self: self.snapshots)
    @rule()
    def close_snapshot(self) -> None:
        """A closed snapshot lets its generation go."""
        self.snapshots.pop(0)[1].close()

    @invariant()
    def all_agree(self) -> None:
        """The writer, the reader and every snapshot say what the model says."""
        for store in (self.writer, self.reader):
            with store.snapshot() as snapshot:
                agree(snapshot, self.model)
        assert self.reader.commit == self.writer.commit >= self.commits
        self.commits = self.writer.commit
        for _, snapshot, model in self.snapshots:
            agree(snapshot, model)

    def close_snapshots_of(self, *stores: Store) -> None:
        """A snapshot does not outlive its handle."""
        for store, snapshot, _ in self.snapshots:
            if store in stores:
                snapshot.close()
        self.snapshots = [one for one in self.snapshots if one[0] not in stores]

    def write(self, batch: list[Given], on_conflict: str) -> Any:
        """The batch through `append`."""
        return self.writer.append(
            [item.vector for item in batch],
            [item.value for item in batch],
            keys=[item.key for item in batch],
            payloads=[item.payload for item in batch],
            texts=[item.text for item in batch],
            value_vectors=[item.cells for item in batch] if self.kind == "text" else None,
            on_conflict=on_conflict,
        )


def agree(snapshot: Snapshot, model: Model) -> None:
    """Everything a snapshot can be asked has the model's answer."""
    names, wanted = list(model.items), list(model.items.values())
    assert list(snapshot.keys()) == names
    assert len(snapshot) == len(names) == int(snapshot.live.sum())
    assert snapshot.settings == model.settings
    if snapshot.layout is None:
        return
    order = snapshot.in_order()
    vectors = np.array([item.vector for item in wanted], np.float32).reshape(-1, KEY_WIDTH)
    blended = _blended(snapshot, wanted)
    assert np.array_equal(snapshot.vectors(order), vectors)
    assert np.array_equal(snapshot.values(order), blended)
    for found, name, item in zip(snapshot.items(order), names, wanted, strict=True):
        same_item(found, name, item)
    _agree_by_name(snapshot, names, wanted, order)
    _agree_by_block(snapshot, order, vectors, blended)
    _agree_in_scale(snapshot, wanted)
    assert not wrong_index(snapshot)


def same_item(found: Any, name: str, item: Given) -> None:
    """One item came back as it was given."""
    assert (found.name, found.key, found.text) == (name, item.key, item.text)
    assert np.array_equal(found.vector, np.array(item.vector, np.float32))
    assert json.dumps(found.payload) == json.dumps(item.payload)
    assert np.array_equal(found.value, np.array(item.value, np.float32) if isinstance(item.value, list) else item.value)


def _agree_by_name(snapshot: Snapshot, names: list[str], wanted: list[Given], order: Any) -> None:
    named = [position for position, name in enumerate(names) if not name.startswith("#")]
    asked = [names[position] for position in named]
    assert snapshot.find_many(asked).tolist() == order[named].tolist()
    assert snapshot.find_many([*asked, "nobody has this"]).tolist() == [*order[named].tolist(), -1]
    for position in {0, len(names) // 2, len(names) - 1} if names else ():
        same_item(snapshot.get(names[position]), names[position], wanted[position])
        assert snapshot.find(names[position]) == order[position]
        assert names[position] in snapshot
    assert "nobody has this" not in snapshot
    assert ("a" in snapshot) == ("a" in names)


def _agree_by_block(snapshot: Snapshot, order: Any, vectors: Any, blended: Any) -> None:
    by_row = np.argsort(order)
    blocks = list(snapshot.blocks(5))
    alive = np.concatenate([block.live for block in blocks]) if blocks else np.zeros(0, bool)
    assert np.array_equal(np.flatnonzero(alive), order[by_row])
    if blocks:
        assert np.array_equal(np.concatenate([block.vectors for block in blocks])[alive], vectors[by_row])
        assert np.array_equal(np.concatenate([block.values for block in blocks])[alive], blended[by_row])
        with np.errstate(over="ignore"):
            lengths = np.linalg.norm(vectors[by_row].astype(np.float64), axis=1).astype(np.float32)
        assert np.allclose(snapshot.norms(0, snapshot.rows)[alive], lengths, rtol=1e-5, atol=1e-44)


def _blended(snapshot: Snapshot, wanted: list[Given]) -> Any:
    kind = snapshot.layout.kind.value if snapshot.layout else ""
    if kind == "label":
        codes = {label: code for code, label in enumerate(snapshot.labels())}
        return np.array([codes[item.value] for item in wanted], np.int32)
    if kind == "number":
        return np.array([item.value for item in wanted], np.float64)
    cells = [item.cells if kind == "text" else item.value for item in wanted]
    return np.array(cells, np.float32).reshape(-1, VALUE_WIDTH)


def _agree_in_scale(snapshot: Snapshot, wanted: list[Given]) -> None:
    """√(mean ‖v − v̄‖²), to what rounding lets through beside the largest value."""
    blended = _blended(snapshot, wanted)
    if snapshot.layout is None or not len(blended):
        assert snapshot.value_scale == 0
        return
    if snapshot.layout.kind.value == "label":
        blended = np.eye(len(snapshot.labels()))[blended]
    rows = blended.astype(np.float64).reshape(len(blended), -1)
    scale = np.sqrt(((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean())
    assert snapshot.value_scale == pytest.approx(scale, rel=1e-3, abs=1e-3 * float(np.abs(rows).max()) + 1e-300)


@pytest.mark.parametrize("tiny", [False, True], ids=["real", "tiny"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_store_agrees_with_a_dict(
    kind: str, tiny: bool, seed: int, thorough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is called in whatever order, store and model give the same answers."""
    if tiny:
        shrink(monkeypatch)
    machine = hypothesis.seed(seed)(lambda: StoreMachine(kind))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=150 if thorough else 14,
            stateful_step_count=50 if thorough else 25,
            deadline=None,
            database=None,
            phases=list(Phase) if thorough else [Phase.generate],  # making an example small takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
