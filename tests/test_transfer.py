"""Whole stores as files: the round trip is identity, files are whole or absent, and no file is believed."""

import json
import os
import resource
import struct
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softkv.errors import (
    AccessRefused,
    BadRecord,
    FormatTooNew,
    InputError,
    MissingExtra,
    SoftKVError,
    StorageFull,
    StoreDamaged,
    StoreExists,
    StoreNotFound,
)
from softkv.files.exports import FORMATS, export, load, portions
from softkv.files.exports.decimals import rows_as_json
from softkv.files.exports.header import LONGEST_HEADER, MOST_CARRIED, Header
from softkv.storage import Snapshot, Store, ValueKind

from . import stores
from .scales import scaled
from .test_docs import failures

SUFFIXES = sorted(FORMATS)
KINDS = [kind.value for kind in ValueKind]
every_format = pytest.mark.parametrize("suffix", SUFFIXES)
every_kind = pytest.mark.parametrize("kind", KINDS)


# Stores to export, and all that is in one


def everything(snapshot: Snapshot) -> list[Any]:
    """All that must come back: order, keys, texts, values, payloads and their types, bytes of vectors, settings."""
    layout = snapshot.layout
    said: list[Any] = [repr(snapshot.settings), layout if len(snapshot) else None]
    rows = snapshot.in_order()
    for item, blended in zip(snapshot.items(rows), snapshot.values(rows) if len(rows) else [], strict=True):
        value = item.value.tobytes() if isinstance(item.value, np.ndarray) else item.value
        cells = None if layout and layout.kind is ValueKind.LABEL else blended.tobytes()
        said.append((item.key, item.text, repr(value), cells, item.vector.tobytes(), repr(item.payload)))
    return said


def contents(store: Store) -> list[Any]:
    """The same of a store as it is now."""
    with store.snapshot() as snapshot:
        return everything(snapshot)


def exported(store: Store, path: Path, **options: Any) -> Path:
    """The path of a store's export."""
    with store.snapshot() as snapshot:
        assert export(snapshot, path, **options) == len(snapshot)
    return path


def of_kind(path: Path, kind: str, count: int = 5) -> Store:
    """A new store of a kind, with a key, a text and a payload for some items, one dead and one replaced row."""
    store = Store.open(path, "c")
    keys = [f"key {i}" if i % 2 == 0 else None for i in range(count)]
    texts = [f"text {i}" if i % 3 == 0 else None for i in range(count)]
    payloads = [{"number": i} if i % 3 == 1 else None for i in range(count)]
    values: Any = {
        "number": [i / 7 for i in range(count)],
        "vector": stores.vectors(count, 3, seed=1),
        "label": ["dead", *("even" if i % 2 else "odd" for i in range(1, count))],
        "text": [f"value {i}" for i in range(count)],
    }[kind]
    worded = {"value_vectors": stores.vectors(count, 3, seed=2)} if kind == "text" else {}
    store.append(
        stores.vectors(count), values, keys=keys, texts=texts, payloads=payloads, settings={"of": kind}, **worded
    )
    store.delete("key 0")
    store.append(
        stores.vectors(1, seed=3),
        values[3:4],
        keys=["key 2"],
        on_conflict="replace",
        **{name: matrix[:1] for name, matrix in worded.items()},
    )
    return store


@pytest.fixture
def fruit(tmp_path: Path) -> Iterator[Store]:
    """A store of three numbers."""
    with stores.fruit(tmp_path / "fruit.softkv") as store:
        yield store
        assert store.check().ok


@pytest.fixture
def new(tmp_path: Path) -> Iterator[Store]:
    """A new, empty store, that is sound afterwards."""
    with Store.open(tmp_path / "new.softkv", "c") as store:
        yield store
        assert store.check().ok


# The round trip

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
odd_text = text | st.sampled_from(
    ["", '"', "\\", "\r\n", "\u2028", "\x01\x7f", "null", "NaN", "\ufeff", "😀", "é", "é"]
)
keys = odd_text.filter(lambda key: not key.startswith("#"))
narrow = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from(
    [-0.0, 1e-45, -1.1754942106924411e-38, 3.4028234663852886e38, 16777217.0, 0.10000000149011612]
).map(lambda number: struct.unpack("f", struct.pack("f", number))[0])
wide = st.floats(-1e150, 1e150) | st.integers(-(2**53), 2**53) | st.sampled_from([-0.0, 5e-324, 1e150])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | odd_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(odd_text, inner, max_size=3),
    max_leaves=8,
)


def row(width: int) -> st.SearchStrategy[list[float]]:
    """A vector."""
    return st.lists(narrow, min_size=width, max_size=width)


@st.composite
def batches(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    """What Store.append takes: a few items of one kind."""
    count, width = draw(st.integers(1, 10)), draw(st.integers(1, 4))
    several = {"min_size": count, "max_size": count}
    value = {"number": wide, "vector": row(width), "label": odd_text, "text": odd_text}[kind]
    batch: dict[str, Any] = {
        "values": draw(st.lists(value, **several)),
        "keys": draw(st.lists(st.none() | keys, **several, unique_by=lambda key: object() if key is None else key)),
        "texts": draw(st.lists(st.none() | odd_text, **several)),
        "payloads": draw(st.lists(json_values, **several)),
        "settings": draw(st.dictionaries(odd_text, json_values, max_size=3)),
    }
    key_width = draw(st.integers(1, 4))
    batch["vectors"] = draw(st.lists(row(key_width), **several))
    if kind == "text":
        batch["value_vectors"] = draw(st.lists(row(width), **several))
    return batch


@every_kind
@settings(max_examples=15)
@given(data=st.data(), doomed=st.sets(st.integers(0, 9)), replaced=st.booleans())
def test_the_round_trip_is_identity(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject, doomed: set[int], replaced: bool
) -> None:
    """Whatever a store holds, it comes back from every format bit for bit, in its order, dead rows left behind."""
    folder, batch = tmp_path_factory.mktemp("trip"), data.draw(batches(kind))
    with Store.open(folder / "old.softkv", "c") as old:
        old.append(**batch)
        if replaced:
            old.append(
                **{name: column[:1] for name, column in batch.items() if name != "settings"}, on_conflict="replace"
            )
        names = list(old.keys())
        old.delete([names[place] for place in doomed if place < len(names)])
        for suffix in SUFFIXES:
            path = exported(old, folder / f"store{suffix}")
            with Store.open(folder / f"{suffix}.softkv", "c") as again:
                assert load(path, again) == len(old)
                assert contents(again) == contents(old)
                assert again.check().ok
        with old.snapshot() as snapshot:
            assert_read_by_others(folder, snapshot)


# Slow readings by other code


def assert_read_by_others(folder: Path, snapshot: Snapshot) -> None:
    """What the files of a folder say to readers that know nothing of softkv is what the store holds."""
    items = snapshot.items(snapshot.in_order())
    blended = snapshot.values(snapshot.in_order()) if items else []
    head = header_of(snapshot)
    by_hand = [json.loads(line) for line in (folder / "store.jsonl").read_text("utf-8").split("\n")[:-1]]
    assert repr(by_hand[0]) == repr({"softkv": head})
    table = pq.read_table(folder / "store.parquet")
    assert repr(json.loads(table.schema.metadata[b"softkv"])) == repr({"softkv": head})
    rows = table.to_pylist()
    assert len(by_hand) - 1 == len(rows) == len(items)
    with np.load(folder / "store.npz", allow_pickle=False) as arrays:
        assert repr(json.loads(arrays["header.json"])) == repr({"softkv": head})
        carried = [json.loads(line) for line in arrays["items.jsonl"].decode().split("\n")[:-1]]
        labels = [json.loads(line) for line in arrays.get("labels.jsonl", b"").decode().split("\n")[:-1]]
        vectors, values = arrays["vectors"], arrays["values"]
    assert len(carried) == len(vectors) == len(values) == len(items)
    assert len(set(labels)) == len(labels)
    for place, item in enumerate(items):
        line, named = by_hand[place + 1], {"key": item.key, "text": item.text, "payload": item.payload}
        words = {"value": item.value} if head["kind"] == "text" else {}
        assert repr(carried[place]) == repr(
            present({"key": item.key, "text": item.text, **words, **present({"payload": item.payload})})
        )
        assert repr({name: line[name] for name in named if name in line}) == repr(present(named))
        assert {name: rows[place][name] for name in ("key", "text")} == {"key": item.key, "text": item.text}
        written = rows[place]["payload"]
        assert repr(None if written is None else json.loads(written)) == repr(item.payload)
        assert (
            packed(line["vector"]) == packed(rows[place]["vector"]) == vectors[place].tobytes() == item.vector.tobytes()
        )
        if head["kind"] == "number":
            assert repr(line["value"]) == repr(rows[place]["value"]) == repr(float(values[place])) == repr(item.value)
        elif head["kind"] == "vector":
            assert (
                packed(line["value"]) == packed(rows[place]["value"]) == values[place].tobytes() == item.value.tobytes()
            )
        elif head["kind"] == "label":
            assert line["value"] == rows[place]["value"] == labels[values[place]] == item.value
        else:
            assert line["value"] == rows[place]["value"] == item.value
            embeddings = packed(line["value_vector"]), packed(rows[place]["value_vector"]), values[place].tobytes()
            assert set(embeddings) == {blended[place].tobytes()}


def header_of(snapshot: Snapshot) -> dict[str, Any]:
    """The header that an export should have."""
    layout = snapshot.layout
    assert layout is not None
    widths = {"key_width": layout.key_width, "value_width": layout.value_width}
    return {"format": 1, "kind": layout.kind.value, **widths, "items": len(snapshot), "settings": snapshot.settings}


def present(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that are there."""
    return {name: field for name, field in fields.items() if field is not None}


def packed(numbers: list[float]) -> bytes:
    """float32 bytes of decimals that were read as float64."""
    return b"".join(struct.pack("<f", number) for number in numbers)


@every_format
@every_kind
def test_items_come_back_in_batches(
    tmp_path: Path, new: Store, suffix: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is larger than what is held in memory at once is written and read in parts, with its progress."""
    monkeypatch.setattr(portions, "MOST_BYTES", 100)
    said: list[tuple[int, int]] = []
    with of_kind(tmp_path / "old.softkv", kind, 30) as old:
        path = exported(old, tmp_path / f"store{suffix}", progress=lambda *done: said.append(done))
        assert said == sorted(said)
        assert len(said) > 3
        assert said[-1] == (29, 29)
        said.clear()
        load(path, new, progress=lambda *done: said.append(done))
        assert [done for done, _ in said] == sorted({done for done, _ in said})
        assert len(said) > 3
        assert said[-1] == (29, 29)
        assert new.commit == len(said)
        assert contents(new) == contents(old)


@every_format
def test_an_empty_store_gives_its_settings(tmp_path: Path, new: Store, suffix: str) -> None:
    """A store that never held anything is a header; its settings come back."""
    with Store.open(tmp_path / "old.softkv", "c") as old:
        old.configure({"compatibility": "cosine"})
        path = exported(old, tmp_path / f"store{suffix}")
    assert load(path, new) == 0
    assert (new.settings, new.layout, len(new)) == ({"compatibility": "cosine"}, None, 0)


@every_format
@every_kind
def test_an_emptied_store_gives_its_settings(tmp_path: Path, new: Store, suffix: str, kind: str) -> None:
    """Of a store whose items are all dead, the settings come back, and no width or kind binds the new one."""
    with of_kind(tmp_path / "old.softkv", kind) as old:
        old.delete(list(old.keys()))
        path = exported(old, tmp_path / f"store{suffix}")
    assert load(path, new) == 0
    assert (new.settings, new.layout) == ({"of": kind}, None)


@every_format
def test_an_export_is_of_its_snapshot(tmp_path: Path, fruit: Store, new: Store, suffix: str) -> None:
    """What is added, deleted or compacted after a snapshot was taken is not in its export."""
    before = contents(fruit)
    with fruit.snapshot() as snapshot:
        fruit.delete("apple")
        fruit.append(stores.vectors(1, seed=4), [9.0], keys=["cherry"])
        fruit.compact()
        export(snapshot, tmp_path / f"store{suffix}")
    load(tmp_path / f"store{suffix}", new)
    assert contents(new) == before


@pytest.mark.parametrize("suffix", [".jsonl", ".npz"])
def test_two_exports_of_a_store_are_the_same_bytes(tmp_path: Path, fruit: Store, suffix: str) -> None:
    """Nothing in a file depends on when or where it was written."""
    first, second = exported(fruit, tmp_path / f"a{suffix}"), exported(fruit, tmp_path / f"b{suffix}")
    assert first.read_bytes() == second.read_bytes()


@every_format
@every_kind
def test_files_made_before_are_read_and_made_again(tmp_path: Path, new: Store, suffix: str, kind: str) -> None:
    """The files in tests/exports hold what they held when they were made, and are written today as they were then."""
    kept = Path(__file__).parent / "exports" / f"{kind}{suffix}"
    with of_kind(tmp_path / "old.softkv", kind) as old:
        files = {"learned": b"some bytes"} if kind == "vector" else {}
        again = exported(old, tmp_path / f"again{suffix}", files=files)
        load(kept, new)
        assert contents(new) == contents(old)
    if suffix == ".parquet":  # whose bytes name the version of pyarrow that wrote them
        ours, theirs = pq.read_table(again), pq.read_table(kept)
        assert ours.schema.equals(theirs.schema, check_metadata=True)
        assert ours.equals(theirs)
    else:
        assert again.read_bytes() == kept.read_bytes()
    with new.snapshot() as snapshot:
        assert (snapshot.index("learned") is not None) == (kind == "vector")


@every_format
def test_labels_of_dead_items_leave_no_trace(tmp_path: Path, suffix: str) -> None:
    """A label that only deleted items carried is not in the file."""
    with of_kind(tmp_path / "old.softkv", "label") as old:
        path = exported(old, tmp_path / f"store{suffix}")
    assert b"dead" not in path.read_bytes()


def test_numbers_of_float32_come_back_exactly_and_short() -> None:
    """Of any bits, each float32 is the one that its decimal is read as, and at most nine digits are written."""
    random = np.random.default_rng(0)
    bits = np.concatenate([random.integers(0, 1 << 32, 120_000, np.uint64), np.arange(256) << 23, np.arange(300)])
    numbers = bits.astype(np.uint32).view(np.float32)
    numbers = numbers[np.isfinite(numbers)]
    matrix = numbers[: len(numbers) // 50 * 50].reshape(-1, 50)
    for row, written in zip(matrix, rows_as_json(matrix), strict=True):
        assert packed(json.loads(written)) == row.tobytes()
    usual = random.standard_normal((200, 50), dtype=np.float32)
    for written in rows_as_json(usual):
        digits = [number.split("e")[0].strip("-0.").replace(".", "") for number in written[1:-1].split(",")]
        assert max(map(len, digits)) <= 9
    said = rows_as_json(np.array([[0.1, -0.3, 1, 100, 1e-5, 2.5, 0]], np.float32))
    assert said == ["[0.1,-0.3,1,100,1e-05,2.5,0]"]


# Whole files or none


@every_format
def test_a_file_that_is_there_is_kept_unless_forced(tmp_path: Path, fruit: Store, new: Store, suffix: str) -> None:
    """An existing target is refused and unchanged; with force it is replaced by the whole export."""
    path = tmp_path / f"store{suffix}"
    path.write_bytes(b"precious")
    with fruit.snapshot() as snapshot, pytest.raises(StoreExists, match="force=True"):
        export(snapshot, path)
    assert path.read_bytes() == b"precious"
    load(exported(fruit, path, force=True), new)
    assert contents(new) == contents(fruit)


def test_only_a_regular_file_is_ever_replaced(tmp_path: Path, fruit: Store) -> None:
    """Force replaces no directory, no link and no pipe."""
    (tmp_path / "a.jsonl").mkdir()
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "c.jsonl")
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        with fruit.snapshot() as snapshot, pytest.raises(StoreExists, match="not a regular file"):
            export(snapshot, tmp_path / name, force=True)
    assert not (tmp_path / "elsewhere").exists()


def test_a_target_inside_the_store_is_refused(tmp_path: Path, fruit: Store) -> None:
    """Neither directly, nor deeper, nor through a link is a file written among those of the store."""
    (tmp_path / "link").symlink_to(tmp_path / "fruit.softkv")
    for folder in ("fruit.softkv", "fruit.softkv/index", "link"):
        with fruit.snapshot() as snapshot, pytest.raises(InputError, match="lies in the store"):
            export(snapshot, tmp_path / folder / "out.jsonl", force=True)
    beside = tmp_path / "fruit.softkv.d"
    beside.mkdir()
    assert exported(fruit, beside / "out.jsonl").exists()


def test_a_target_that_cannot_be_is_refused(tmp_path: Path, fruit: Store) -> None:
    """A folder that is not there, a name with a NUL, no known suffix: each says what to do."""
    with fruit.snapshot() as snapshot:
        with pytest.raises(StoreNotFound, match="is not a directory"):
            export(snapshot, tmp_path / "nowhere" / "out.jsonl")
        with pytest.raises(InputError, match="NUL"):
            export(snapshot, str(tmp_path / "a\0b.jsonl"))
        with pytest.raises(InputError, match="end in one of jsonl, parquet, npz, csv"):
            export(snapshot, tmp_path / "out.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["fruit.softkv"]


def test_a_suffix_may_be_in_capitals(tmp_path: Path, fruit: Store) -> None:
    """It tells the format all the same."""
    assert exported(fruit, tmp_path / "A.JSONL").read_bytes().startswith(b'{"softkv"')


@every_format
@pytest.mark.parametrize("before", [None, b"precious"])
def test_an_interrupted_export_leaves_nothing(tmp_path: Path, fruit: Store, suffix: str, before: bytes | None) -> None:
    """An interrupt in the middle leaves no file under any name, and one that was there as it was."""
    folder = tmp_path / "out"
    folder.mkdir()
    if before is not None:
        (folder / f"store{suffix}").write_bytes(before)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with fruit.snapshot() as snapshot, pytest.raises(KeyboardInterrupt):
        export(snapshot, folder / f"store{suffix}", force=True, progress=interrupt)
    assert [path.read_bytes() for path in folder.iterdir()] == ([] if before is None else [before])


def test_an_error_of_the_caller_stays_the_callers(tmp_path: Path, fruit: Store) -> None:
    """A pipe that breaks while progress is shown is not taken for a disk that cannot be written."""

    def broken(done: int, total: int) -> None:
        raise BrokenPipeError("progress")

    with fruit.snapshot() as snapshot, pytest.raises(BrokenPipeError, match="progress"):
        export(snapshot, tmp_path / "out.jsonl", progress=broken)


@every_format
def test_a_damaged_store_is_not_exported(tmp_path: Path, new: Store, suffix: str) -> None:
    """Where the store's own checksums disagree, there is an error and no file."""
    path = stores.closed_fruit(tmp_path / "old.softkv")
    stores.flip(path / stores.GENERATION / "keys.f32", 4096 + 5)
    with Store.open(path) as store, store.snapshot() as snapshot, pytest.raises(StoreDamaged):
        export(snapshot, tmp_path / f"store{suffix}")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["new.softkv", "old.softkv"]


@every_format
def test_a_full_disk_leaves_nothing(tmp_path: Path, suffix: str) -> None:
    """When there is no room for the file, the error says so, and nothing of it stays."""
    folder = tmp_path / "out"
    folder.mkdir()

    def write() -> None:
        with of_kind(tmp_path / "old.softkv", "vector", 4000) as store, store.snapshot() as snapshot:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
            with pytest.raises(StorageFull, match="cannot write"):
                export(snapshot, folder / f"store{suffix}")
            os._exit(0)  # closing the store would write, too

    stores.in_child(write)
    assert list(folder.iterdir()) == []


def test_a_file_that_comes_between_is_left_alone(tmp_path: Path, fruit: Store) -> None:
    """A target that somebody else makes while the export is written is not replaced."""
    path = tmp_path / "out.jsonl"

    def intrude(done: int, total: int) -> None:
        path.write_bytes(b"precious")

    with fruit.snapshot() as snapshot, pytest.raises(StoreExists, match="meanwhile"):
        export(snapshot, path, progress=intrude)
    assert path.read_bytes() == b"precious"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["fruit.softkv", "out.jsonl"]


# Reading into a store


def test_only_a_new_store_is_read_into(tmp_path: Path, fruit: Store, new: Store) -> None:
    """A store that has items, or had, is refused and not changed; so is one that is open for reading."""
    path = exported(fruit, tmp_path / "fruit.jsonl")
    new.append([[1.0]], ["label"], keys=["a"])
    for _ in range(2):
        before = new.commit
        with pytest.raises(StoreExists, match="read the file into a new store"):
            load(path, new)
        assert new.commit == before
        new.delete(list(new.keys()))
    Store.open(tmp_path / "empty.softkv", "c").close()
    with Store.open(tmp_path / "empty.softkv") as reader, pytest.raises(AccessRefused):
        load(path, reader)


def test_only_a_regular_file_is_read(tmp_path: Path, new: Store) -> None:
    """A missing file, a directory and a pipe are refused by name, and without waiting."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    for name in ("pipe.jsonl", "folder.jsonl"):
        with pytest.raises(BadRecord, match=f"{name} is not a regular file"):
            load(tmp_path / name, new)
    with pytest.raises(StoreNotFound, match="there is no file"):
        load(tmp_path / "missing.jsonl", new)


def test_a_link_to_a_file_is_followed(tmp_path: Path, fruit: Store, new: Store) -> None:
    """What is read may be named by a link."""
    (tmp_path / "link.jsonl").symlink_to(exported(fruit, tmp_path / "fruit.jsonl"))
    assert load(tmp_path / "link.jsonl", new) == 3


@every_format
def test_an_interrupted_load_leaves_whole_batches(
    tmp_path: Path, new: Store, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was committed before an interrupt stays, with the settings."""
    monkeypatch.setattr(portions, "MOST_BYTES", 100)
    with of_kind(tmp_path / "old.softkv", "number", 30) as old:
        path, whole = exported(old, tmp_path / f"store{suffix}"), contents(old)

    def interrupt(done: int, total: int) -> None:
        if done > 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(path, new, progress=interrupt)
    assert 10 < len(new) < 29
    assert contents(new) == whole[: len(new) + 2]


@every_format
def test_a_cut_file_is_noticed(tmp_path: Path, new: Store, suffix: str) -> None:
    """Wherever a file ends too early, at a line end or not, it is refused and nothing of it is written."""
    with of_kind(tmp_path / "old.softkv", "text") as old:
        whole = exported(old, tmp_path / f"store{suffix}").read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")][:-1]
    for size in sorted({0, 1, *range(10, len(whole) - 1, max(1, len(whole) // 60)), *ends}):
        (tmp_path / f"cut{suffix}").write_bytes(whole[:size])
        with pytest.raises(BadRecord, match=f"cut{suffix}"):
            load(tmp_path / f"cut{suffix}", new)
    assert new.commit == 0


@every_format
@every_kind
def test_no_damage_leads_astray(tmp_path: Path, suffix: str, kind: str) -> None:
    """Of a file in which any one byte is another, the reader gives items or an error of ours, and nothing else."""
    with of_kind(tmp_path / "old.softkv", kind) as old:
        path = exported(old, tmp_path / f"store{suffix}")
    whole, random, refused = path.read_bytes(), np.random.default_rng(0), 0
    for place in random.integers(0, len(whole), 150).tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(random.integers(8))
        path.write_bytes(damaged)
        try:
            with open(path, "rb") as file:
                for portion in FORMATS[suffix].read(file, str(path))[1]:
                    assert len(portion)
        except SoftKVError:
            refused += 1
    assert refused > 20


def test_a_damaged_vector_is_noticed_before_anything_is_written(
    tmp_path: Path, new: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Archives and tables carry checksums: a flipped bit is found before the first of several batches is written."""
    monkeypatch.setattr(portions, "MOST_BYTES", 5000)
    for suffix in (".npz", ".parquet"):
        with of_kind(tmp_path / f"old{suffix}", "number", 900) as old:
            path = exported(old, tmp_path / f"store{suffix}")
        stores.flip(path, path.read_bytes().index(stores.vectors(900)[5:9].tobytes()) + 5)
        with pytest.raises(BadRecord, match="no sound"):
            load(path, new)
    assert new.commit == 0


# Hostile lines

HEADER = {"format": 1, "kind": "number", "key_width": 2, "value_width": 1, "items": 2, "settings": {}}
GOOD = '{"key": "a", "value": 1, "vector": [1, 2]}'


def jsonl(path: Path, *given: str | bytes, **changes: Any) -> Path:
    """A file of a header, with changes, and lines."""
    lines = [json.dumps({"softkv": {**HEADER, **changes}}), *given]
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines) + b"\n")
    return path


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[1, 2]", "this is a list; expected one object per line"),
        ("null", "this is null"),
        (b'{"key": "\xff"}', "is not UTF-8"),
        ('{"key": "\\ud800", "value": 1, "vector": [1, 2]}', "the key holds a lone surrogate"),
        ('{"key": "a\\u0000", "value": 1, "vector": [1, 2]}', "NUL"),
        ('{"key": "#7", "value": 1, "vector": [1, 2]}', "the key '#7' starts with '#'"),
        ('{"key": 7, "value": 1, "vector": [1, 2]}', "key is a number; expected a text or null"),
        ('{"key": "a", "value": 1, "vector": [1, 2]}', "key 'a' stands more than once in the file"),
        ('{"key": "b", "key": "c", "value": 1, "vector": [1, 2]}', "the name 'key' stands twice"),
        ('{"text": [], "value": 1, "vector": [1, 2]}', "text is a list"),
        ('{"value": 1, "vector": [1, 2], "payloads": 3}', "unknown field 'payloads'"),
        ('{"value": 1, "vector": [1, 2], "value_vector": [3]}', "unknown field 'value_vector'"),
        ('{"vector": [1, 2]}', "value is missing; expected a number"),
        ('{"value": true, "vector": [1, 2]}', "value is true or false"),
        ('{"value": "1", "vector": [1, 2]}', "value is a text"),
        ('{"value": NaN, "vector": [1, 2]}', "NaN is not JSON"),
        ('{"value": 1e999, "vector": [1, 2]}', "the value is NaN, infinity"),
        ('{"value": 9007199254740993, "vector": [1, 2]}', "beyond ±2\\^53"),
        ('{"value": 1}', "vector is missing; expected a list of 2 numbers"),
        ('{"value": 1, "vector": null}', "vector is null"),
        ('{"value": 1, "vector": {"0": 1}}', "vector is an object"),
        ('{"value": 1, "vector": [1]}', "vector has 1 numbers; expected 2"),
        ('{"value": 1, "vector": [1, 2, 3]}', "vector has 3 numbers; expected 2"),
        ('{"value": 1, "vector": [1, "2"]}', "vector holds a text"),
        ('{"value": 1, "vector": [1, true]}', "vector holds true or false"),
        ('{"value": 1, "vector": [1, [2]]}', "vector holds a list"),
        ('{"value": 1, "vector": [1, -Infinity]}', "-Infinity is not JSON"),
        ('{"value": 1, "vector": [1, 1e39]}', "the key vector holds NaN, infinity"),
        (f'{{"value": 1, "vector": [1, 1{"0" * 400}]}}', "beyond float32's range"),
        (f'{{"value": 1, "vector": [1, 2], "payload": {"[" * 65}{"]" * 65}}}', "nested deeper than 64"),
        (f'{{"value": 1, "vector": [1, 2], "payload": {"[" * 99_999}{"]" * 99_999}}}', "nested too deep"),
        ('{"value": 1, "vector": [1, 2], "payload": 1e999}', "the payload cannot be JSON"),
        ('{"value": 1, "vector": [1, 2], "payload": {"a": NaN}}', "NaN is not JSON"),
        (f'{{"value": 1, "vector": [{"0," * 3_200_000}0]}}', "more than 3,145,828 values"),
        (f'{{"value": 1, "vector": [{json.dumps("a,") * 3_200_000}0]}}', "more than 3,145,828 values"),
    ],
    ids=lambda given: None if isinstance(given, bytes) else given[:50],
)
def test_a_bad_line_is_named(tmp_path: Path, new: Store, line: str | bytes, reason: str) -> None:
    """A line that is no item is refused with file, line and reason; nothing of its batch is written."""
    with pytest.raises(BadRecord, match=f"bad.jsonl, line 3: .*{reason}"):
        load(jsonl(tmp_path / "bad.jsonl", GOOD, line), new)
    assert new.commit == 0


def test_a_bad_line_leaves_the_batches_before_it(tmp_path: Path, new: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of an earlier batch is found out, and the line of the second one is named."""
    monkeypatch.setattr(portions, "MOST_BYTES", 1)
    bare = '{"value": 2, "vector": [1, 2]}'
    with pytest.raises(BadRecord, match="line 4: the key 'a' stands more than once"):
        load(jsonl(tmp_path / "bad.jsonl", GOOD, bare, GOOD, items=3, settings={"kept": True}), new)
    assert (len(new), new.settings) == (2, {"kept": True})


def test_a_line_has_a_limit(tmp_path: Path, new: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more of a line is read than the longest that an item can be."""
    monkeypatch.setattr("softkv.files.exports.jsonl.LONGEST_LINE", 1000)
    scaled(monkeypatch, characters=100)
    with pytest.raises(BadRecord, match="line 3: the line is longer than 1,000 characters"):
        load(jsonl(tmp_path / "bad.jsonl", GOOD, " " * 1200), new)


def test_long_texts_full_of_signs_are_no_attack(tmp_path: Path, new: Store) -> None:
    """Commas, brackets and quotes inside of a text do not count as values of the line."""
    with Store.open(tmp_path / "old.softkv", "c") as old:
        old.append([[1.0, 2.0]], [1.0], texts=['[{,"\\' * 2_500_000])
        load(exported(old, tmp_path / "old.jsonl"), new)
        assert contents(new) == contents(old)


def test_too_many_and_too_few_lines_are_noticed(tmp_path: Path, new: Store) -> None:
    """The number of items in the header must be that of the lines; blank lines at the end are nothing."""
    with pytest.raises(BadRecord, match="something follows line 2, but the header says 1 items"):
        load(jsonl(tmp_path / "a.jsonl", GOOD, GOOD, items=1), new)
    with pytest.raises(BadRecord, match="ends before line 3, but its header says 9007199254740992 items"):
        load(jsonl(tmp_path / "b.jsonl", GOOD, items=2**53), new)
    with pytest.raises(BadRecord, match="something follows line 1"):
        load(jsonl(tmp_path / "c.jsonl", GOOD, items=0), new)
    assert load(jsonl(tmp_path / "d.jsonl", GOOD, "", " ", items=1), new) == 1


def test_a_byte_order_mark_is_taken_for_what_it_is(tmp_path: Path, new: Store) -> None:
    """A file that an editor saved with a mark, and with the line ends of another system, reads the same."""
    path = jsonl(tmp_path / "a.jsonl", GOOD, items=1)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert load(path, new) == 1


# Hostile headers


def header_in(path: Path, given: bytes) -> Path:
    """A file whose header is this, and whose items are not looked at."""
    if path.suffix == ".jsonl":
        path.write_bytes(given + b"\n")
    elif path.suffix == ".npz":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("header.json", given)
    else:
        pq.write_table(pa.table({"key": ["a"]}).replace_schema_metadata({b"softkv": given}), path)
    return path


@every_format
@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"", "no header"),
        (b"{", "no header"),
        (b"[]", "no header"),
        (b"\xff\xfe", "no header"),
        (b'{"key": "a"}', "no header"),
        (b'{"softkv": 7}', "no format number"),
        (b'{"softkv": {"kind": "number"}}', "no format number"),
        ({"format": 0}, "no format number"),
        ({"format": True}, "no format number"),
        ({"more": 1}, "fields"),
        ({"items": -1}, "items is -1"),
        ({"items": 1.0}, "items is 1.0"),
        ({"settings": []}, "settings are a list"),
        ({"settings": {"a": [[[[[[[[1e999]]]]]]]]}}, "no header"),
        ({"kind": "colour"}, "kind is 'colour'"),
        ({"kind": ["number"]}, "kind is"),
        ({"kind": None}, "kind is None"),
        ({"key_width": 0}, "key width is 0"),
        ({"key_width": 2**53}, "key width is 9007199254740992"),
        ({"key_width": "2"}, "widths are '2'"),
        ({"value_width": 2}, "width 1, not 2"),
        ({"kind": None, "key_width": None, "value_width": None}, "not of what kind"),
        (b" " * (LONGEST_HEADER + 1), "longer than"),
        (b'{"softkv":[' + b"1," * (1 << 21) + b"1]}", "more than 1,048,576 values"),
        ({"format": 2}, "fields"),
        ({"files": {}}, "fields"),
        ({"format": 2, "files": []}, "files is a list"),
        ({"format": 2, "files": {"a": [1]}}, "expected an object of texts"),
        ({"format": 2, "files": {"a": "a=b"}}, "'a' is not in base64"),
        ({"format": 2, "files": {"": ""}}, "expected the name of an index file as 1 to 255 bytes"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_a_bad_header_is_refused(
    tmp_path: Path, new: Store, suffix: str, header: bytes | dict[str, Any], reason: str
) -> None:
    """A header that is none, or that says what cannot be, is refused before anything is sized by it."""
    given = header if isinstance(header, bytes) else json.dumps({"softkv": {**HEADER, **header}}).encode()
    with pytest.raises(BadRecord, match=rf"bad{suffix}.*: .*{reason}"):
        load(header_in(tmp_path / f"bad{suffix}", given), new)
    assert new.commit == 0


@every_format
def test_files_go_along_and_do_not_depend_on_rows(tmp_path: Path, fruit: Store, new: Store, suffix: str) -> None:
    """Bytes under names, of any content, beside other settings; they are index files of the store that is loaded."""
    files = {"one": bytes(range(256)) * 9, "two / \N{SNOWMAN}": b""}
    path = exported(fruit, tmp_path / f"all{suffix}", files=files, settings={"names": "one"})
    assert load(path, new) == 3
    assert new.settings == {"names": "one"}
    with new.snapshot() as snapshot:
        found = [snapshot.index(name) for name in files]
        assert [bytes(one.read()) for one in found if one is not None] == list(files.values())
    assert new.check().ok


@every_format
def test_as_many_bytes_as_a_header_takes_go_along(tmp_path: Path, fruit: Store, new: Store, suffix: str) -> None:
    """One file more than may be carried is refused before anything is written."""
    content = np.random.default_rng(0).bytes(MOST_CARRIED)
    with fruit.snapshot() as snapshot, pytest.raises(InputError, match="do not fit"):
        export(snapshot, tmp_path / f"none{suffix}", files={"large": content, "more": b"x"})
    assert not (tmp_path / f"none{suffix}").exists()
    load(exported(fruit, tmp_path / f"all{suffix}", files={"large": content}), new)
    with new.snapshot() as snapshot:
        found = snapshot.index("large")
        assert found is not None
        assert found.read() == content


@every_format
def test_the_header_that_is_accepted_is_gone_by(tmp_path: Path, fruit: Store, new: Store, suffix: str) -> None:
    """It may be refused before anything is written, and have other settings and files."""

    def refuse(header: Header) -> Header:
        assert new.commit == 0
        raise KeyError(*header.files)

    path = exported(fruit, tmp_path / f"all{suffix}", files={"one": b"1"}, settings={"a": 1})
    with pytest.raises(KeyError, match="one"):
        load(path, new, accept=refuse)
    assert new.commit == 0
    load(path, new, accept=lambda header: replace(header, settings={"b": 2}, files={}))
    with new.snapshot() as snapshot:
        assert (snapshot.settings, snapshot.index("one")) == ({"b": 2}, None)


@every_format
def test_a_newer_format_is_refused_with_its_number(tmp_path: Path, new: Store, suffix: str) -> None:
    """Whatever else a newer header holds, the message names the number and what to install."""
    given = json.dumps({"softkv": {"format": 3, "new": "field"}}).encode()
    with pytest.raises(FormatTooNew, match=r"format 3.*up to 2.*pip install"):
        load(header_in(tmp_path / f"new{suffix}", given), new)


@every_format
def test_a_file_of_something_else_is_refused(tmp_path: Path, new: Store, suffix: str) -> None:
    """A JSON file, an archive of arrays and a table that no store was exported to are named as such."""
    path = tmp_path / f"other{suffix}"
    if suffix == ".jsonl":
        path.write_text(GOOD)
    elif suffix == ".npz":
        np.savez(path, vectors=np.zeros((3, 2), np.float32))
    else:
        pq.write_table(pa.table({"key": ["a"]}), path)
    with pytest.raises(BadRecord, match="other"):
        load(path, new)


# Hostile archives


def npz(path: Path, compressed: bool = False, **members: Any) -> Path:
    """An archive of two numbers, some members of which are replaced, added or (None) left out."""
    parts: dict[str, Any] = {
        "header.json": json.dumps({"softkv": HEADER}).encode(),
        "vectors.npy": np.ones((2, 2), np.float32),
        "values.npy": np.ones(2),
        "items.jsonl": b"{}\n{}\n",
    }
    parts.update({name.replace("_", "."): part for name, part in members.items()})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as archive:
        for name, part in parts.items():
            if isinstance(part, np.ndarray):
                with archive.open(name, "w") as member:
                    np.lib.format.write_array(member, part, allow_pickle=True)
            elif part is not None:
                archive.writestr(name, part)
    return path


def header_of_array(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    """The header of an array, and a little of what should follow."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + bytes(16)


class Exploding:
    """An object whose unpickling would not go unnoticed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("something was unpickled",)


LABELS = json.dumps({"softkv": {**HEADER, "kind": "label"}}).encode()
MANY = json.dumps({"softkv": {**HEADER, "items": 2**53}}).encode()
CODES = np.array([0, 1], np.int32)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"header_json": None}, "no header.json, so it is not an export"),
        ({"vectors_npy": None}, "it holds .* expected .*'vectors.npy'"),
        ({"more_npy": np.zeros(1)}, "it holds .*'more.npy'"),
        ({"compressed": True}, "compressed"),
        ({"vectors_npy": b""}, "the array 'vectors' cannot be read: it is no array"),
        ({"vectors_npy": b"something else"}, "the array 'vectors' cannot be read: it"),
        ({"vectors_npy": b"\x93NUMPY\x01\x00\x04\x00{}{}"}, "the array 'vectors' cannot be read: it"),
        ({"vectors_npy": b"\x93NUMPY\x09\x00" + bytes(99)}, "format 1 or 2"),
        ({"vectors_npy": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}"}, "the array 'vectors' cannot be read: it"),
        ({"vectors_npy": np.array([[Exploding(), 1], [2, 3]], object)}, "Python objects"),
        ({"vectors_npy": np.ones((2, 2))}, r"shape \(2, 2\), type <f8; expected \(2, 2\), <f4"),
        ({"vectors_npy": np.ones((2, 2), ">f4")}, "type >f4"),
        ({"vectors_npy": np.asfortranarray(np.ones((2, 2), np.float32))}, "Fortran order"),
        ({"vectors_npy": np.ones((3, 2), np.float32)}, r"shape \(3, 2\)"),
        ({"vectors_npy": header_of_array((2, 2))[:-1]}, "has 143 bytes, but its header promises 144"),
        ({"vectors_npy": header_of_array((2, 2)) + b"0"}, "has 145 bytes, but its header promises 144"),
        (
            {"vectors_npy": header_of_array((2**53, 2)), "header_json": MANY},
            "has 144 bytes, but its header promises 72,057,594,037,928,064",
        ),
        ({"vectors_npy": np.full((2, 2), np.nan, np.float32)}, "item 0 .*the key vector holds NaN"),
        ({"values_npy": np.ones((2, 1))}, r"values.npy has shape \(2, 1\)"),
        ({"values_npy": np.array([1, np.inf])}, "item 1 .*the value is NaN, infinity"),
        ({"items_jsonl": b"{}\n"}, "items.jsonl: the file ends before item 1"),
        ({"items_jsonl": b"{}\n{}\n{}\n"}, "items.jsonl: something follows item 1"),
        ({"items_jsonl": b'{}\n{"vector": [1, 2]}\n'}, "item 1 .*unknown field 'vector'"),
        ({"items_jsonl": b'{}\n{"value": 2}\n'}, "item 1 .*unknown field 'value'"),
        ({"header_json": LABELS}, "labels.jsonl"),
        ({"header_json": LABELS, "values_npy": CODES, "labels_jsonl": b'"a"\n'}, "item 1 .*label code 1 of 1"),
        ({"header_json": LABELS, "values_npy": -CODES, "labels_jsonl": b'"a"\n'}, "item 1 .*label code -1 of 1"),
        ({"header_json": LABELS, "values_npy": CODES, "labels_jsonl": b'"a"\n7\n'}, "line 2: this is a number"),
        ({"header_json": LABELS, "values_npy": CODES, "labels_jsonl": b'"a"\nb\n'}, "line 2: not JSON"),
        ({"header_json": LABELS, "values_npy": CODES, "labels_jsonl": b'""\n' * 3}, "more labels than there are items"),
    ],
    ids=lambda given: None if isinstance(given, dict) else given[:50],
)
def test_a_bad_archive_is_refused(tmp_path: Path, new: Store, members: dict[str, Any], reason: str) -> None:
    """An archive that is not what its headers say is refused before anything is allocated, unpickled or written."""
    with pytest.raises(BadRecord, match=f"bad.npz.*({reason})"):
        load(npz(tmp_path / "bad.npz", **members), new)
    assert new.commit == 0


def test_the_archive_of_the_tests_is_sound(tmp_path: Path, new: Store) -> None:
    """The archive whose variants are refused is itself read."""
    assert load(npz(tmp_path / "good.npz"), new) == 2


def test_a_member_twice_is_refused(tmp_path: Path, new: Store) -> None:
    """Which of two members of one name counts is not guessed."""
    with zipfile.ZipFile(npz(tmp_path / "bad.npz"), "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("items.jsonl", b"{}\n{}\n")
    with pytest.raises(BadRecord, match="twice"):
        load(tmp_path / "bad.npz", new)


def test_an_endless_list_of_members_is_not_read(tmp_path: Path, new: Store) -> None:
    """A directory that takes most of a large archive is refused by its length, not by listing it."""
    size = 40_000_000
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFE, 0xFFFE, size, 0, 0)
    with open(tmp_path / "bad.npz", "wb") as file:
        file.truncate(size)
        file.seek(size)
        file.write(end)
    with pytest.raises(BadRecord, match="40,000,000 bytes long"):
        load(tmp_path / "bad.npz", new)


# Parquet from others


def table(path: Path, items: int = 2, kind: str = "number", **columns: Any) -> Path:
    """A table of two numbers, some columns of which are replaced, added or (None) left out."""
    parts: dict[str, Any] = {
        "key": ["a", "b"],
        "text": pa.nulls(2, pa.string()),
        "value": [1.0, 2.0],
        "vector": pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)),
        "payload": ["{}", None],
    }
    parts.update(columns)
    found = pa.table({name: part for name, part in parts.items() if part is not None})
    header = json.dumps({"softkv": {**HEADER, "items": items, "kind": kind}})
    pq.write_table(found.replace_schema_metadata({b"softkv": header.encode()}), path)
    return path


def test_tables_of_other_programs_are_read(tmp_path: Path, new: Store) -> None:
    """Lists without a fixed width, long texts and dictionaries are the same columns, as other programs write them."""
    path = table(
        tmp_path / "theirs.parquet",
        key=pa.array(["a", None], pa.large_string()),
        text=pa.array(["x", "x"]).dictionary_encode(),
        vector=pa.array([[0.1, 2], [3, 4]], pa.list_(pa.float32())),
        payload=pa.array(["[1]", None], pa.large_string()),
    )
    assert load(path, new) == 2
    first, second = new.items(new.in_order())
    assert (first.key, first.text, first.payload, second.key, second.text, second.payload) == (
        *("a", "x", [1]),
        *(None, "x", None),
    )
    assert first.vector.tolist() == [np.float32(0.1), 2]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"text": None}, "has the columns .* expected .*'text'"),
        ({"more": [1, 2]}, "has the columns .*'more'"),
        ({"value": ["1", "2"]}, "column value is of type string; expected double"),
        ({"value": [1, 2]}, "column value is of type int64"),
        ({"value": [1.0, None]}, "row 1 .*: value is null"),
        ({"value": [1.0, float("nan")]}, "row 1 .*: the value is NaN"),
        ({"key": [1, 2]}, "column key is of type int64; expected string"),
        ({"key": ["a", "a"]}, "row 1 .*: the key 'a' stands more than once"),
        ({"vector": [[1.0, 2.0], [3.0, 4.0]]}, "column vector is of type list<.*double"),
        ({"vector": pa.array([[1], [3]], pa.list_(pa.float32(), 1))}, "column vector is of type fixed"),
        ({"vector": pa.array([[1, 2], [3]], pa.list_(pa.float32()))}, "row 1 .*: vector has 1 numbers; expected 2"),
        ({"vector": pa.array([[1, 2], None], pa.list_(pa.float32(), 2))}, "(vector is null|no sound Parquet file)"),
        ({"vector": pa.array([[1, 2], [3, None]], pa.list_(pa.float32()))}, "row 1 .*: vector holds null"),
        ({"payload": ["{}", "{"]}, "row 1 .*: payload: not JSON"),
        ({"payload": ["{}", "[NaN]"]}, "row 1 .*: payload: NaN is not JSON"),
        ({"items": 3}, "has 2 rows, but its header says 3 items"),
        ({"kind": "label"}, "column value is of type double; expected string"),
    ],
    ids=lambda given: None if isinstance(given, dict) else given[:50],
)
def test_a_bad_table_is_refused(tmp_path: Path, new: Store, columns: dict[str, Any], reason: str) -> None:
    """A table with other columns, types or rows than its header says is refused; nothing is written."""
    with pytest.raises(BadRecord, match=f"bad.parquet.*{reason}"):
        load(table(tmp_path / "bad.parquet", **columns), new)
    assert new.commit == 0


def test_a_table_with_a_column_twice_is_refused(tmp_path: Path, new: Store) -> None:
    """Which of two columns of one name counts is not guessed."""
    once = pq.read_table(table(tmp_path / "bad.parquet"))
    pq.write_table(once.append_column("key", pa.array(["c", "d"])), tmp_path / "bad.parquet")
    with pytest.raises(BadRecord, match="has the columns"):
        load(tmp_path / "bad.parquet", new)


def test_parquet_without_pyarrow_names_the_extra(
    tmp_path: Path, fruit: Store, new: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where pyarrow is not installed, both ways say what to install, and the other formats go on working."""
    path = exported(fruit, tmp_path / "fruit.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"softkv\[parquet\]"):
        load(path, new)
    with fruit.snapshot() as snapshot, pytest.raises(MissingExtra, match=r"softkv\[parquet\]"):
        export(snapshot, tmp_path / "again.parquet")
    assert load(exported(fruit, tmp_path / "fruit.npz"), new) == 3
    assert sorted(one.name for one in tmp_path.glob("*.*")) == [
        *("fruit.npz", "fruit.parquet", "fruit.softkv", "new.softkv"),
    ]


# The page


def test_the_page_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of docs/transfer.md, of which some read and write the files without softkv, run as they stand."""
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parent.parent / "docs" / "transfer.md"
    failed, report = failures(page.read_text(encoding="utf-8"), page.name)
    assert not failed, report
