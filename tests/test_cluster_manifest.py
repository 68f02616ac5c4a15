"""What a cluster is: manifests that are there whole or not at all, and keys that always have the same bucket."""

import os
import shutil
from collections import Counter
from pathlib import Path
from zlib import crc32

import pytest

import softkv
from softkv.doors.cluster.handle import create
from softkv.doors.cluster.manifest import Manifest, Placed, bucket_of, bucket_without_key
from softkv.errors import FormatTooNew, InputError, NotAStore, SoftKVError, StoreDamaged, StoreExists

from .clusters import clustered, opened


def newest(path: Path) -> Path:
    """The manifest that counts."""
    return sorted(path.glob("manifest-*.json"))[-1]


def test_keys_have_the_buckets_that_they_always_had() -> None:
    """Those of another version would look for items in other shards."""
    assert [bucket_of(key) for key in ("a large house", "item 0", "ä", "", "\ud800")] == [26, 176, 143, 154, 20]
    assert [bucket_without_key("one", place) for place in range(3)] == [141, 142, 92]


def test_buckets_are_shared_out_evenly() -> None:
    """Any number of shards has even shares, and so have keys."""
    for count in (1, 3, 7, 256):
        shares = Counter(Manifest.first("c", [Placed("", "")] * count, {}).buckets).values()
        assert max(shares) - min(shares) <= 1
        assert len(shares) == count
    keys = Counter(bucket_of(f"item {number}") // 32 for number in range(8000))
    assert min(keys.values()) > 900


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    """The highest counts, and none takes the place of another."""
    create(tmp_path / "c", 3, value="number", temperature=0.5)
    first = Manifest.read(str(tmp_path / "c"))
    assert (first.epoch, len(first.shards), first.settings["value"]) == (1, 3, "number")
    second = first.with_settings({"value": "number"})
    second.write(str(tmp_path / "c"))
    assert Manifest.read(str(tmp_path / "c")) == second
    with pytest.raises(StoreExists, match="another process"):
        second.write(str(tmp_path / "c"))
    assert sorted(path.name for path in (tmp_path / "c").glob("manifest*")) == [
        "manifest-0000000001.json",
        "manifest-0000000002.json",
    ]


def test_of_two_writers_with_one_process_id_one_is_told_that_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be threads, or in containers that share a disk; the manifest is the one of that writer."""
    create(tmp_path / "c", 2, value="number")
    one, two = (Manifest.read(str(tmp_path / "c")).with_settings({"of": name}) for name in ("one", "two"))
    link = os.link

    def linked(beside: str, path: str) -> None:
        monkeypatch.setattr(os, "link", link)
        two.write(str(tmp_path / "c"))
        link(beside, path)

    monkeypatch.setattr(os, "link", linked)
    with pytest.raises(StoreExists, match="another process"):
        one.write(str(tmp_path / "c"))
    assert Manifest.read(str(tmp_path / "c")) == two
    assert len(list((tmp_path / "c").glob("manifest*"))) == 2


def test_what_a_stopped_process_left_is_no_manifest(tmp_path: Path) -> None:
    """One that was not linked into its place counts for nothing, and is in nobody's way."""
    create(tmp_path / "c", 2)
    (tmp_path / "c" / "manifest-0000000002.json.0f").write_text("{")
    found = Manifest.read(str(tmp_path / "c"))
    found.with_settings({}).write(str(tmp_path / "c"))
    assert Manifest.read(str(tmp_path / "c")).epoch == 2


@pytest.mark.parametrize("place", [0, 30, -3])
def test_a_flipped_bit_in_a_manifest_is_seen(tmp_path: Path, place: int) -> None:
    """It may be anywhere; the one before is not believed in its place."""
    create(tmp_path / "c", 2)
    content = bytearray(newest(tmp_path / "c").read_bytes())
    content[place] ^= 4
    newest(tmp_path / "c").write_bytes(content)
    with pytest.raises(StoreDamaged, match="manifest-0000000001"):
        softkv.open(tmp_path / "c")


def test_a_manifest_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    """The error says what to do about it."""
    create(tmp_path / "c", 2)
    content, _, _ = newest(tmp_path / "c").read_bytes().rpartition(b"crc32 ")
    content = content.replace(b'"format": 1', b'"format": 2')
    newest(tmp_path / "c").write_bytes(content + b"crc32 %08x\n" % crc32(content))
    with pytest.raises(FormatTooNew, match="Update softkv"):
        softkv.open(tmp_path / "c")


def test_a_shard_in_the_wrong_place_is_refused(tmp_path: Path) -> None:
    """Items would be looked for in the wrong store."""
    clustered(tmp_path / "c", "number", shards=2).close()
    one, other = tmp_path / "c" / "shard-000", tmp_path / "c" / "shard-001"
    one.rename(tmp_path / "kept")
    other.rename(one)
    (tmp_path / "kept").rename(other)
    for mode in ("r", "c"):
        with pytest.raises(StoreDamaged, match="but shard 0 of"):
            softkv.open(tmp_path / "c", mode)
    with softkv.open(one) as store:  # which was let go
        assert len(store)
    shutil.rmtree(one)
    with pytest.raises(SoftKVError, match="shard-000"):
        softkv.open(tmp_path / "c")


def test_shards_lie_on_the_disks_that_are_named(tmp_path: Path) -> None:
    """They lie there in turn, by paths that hold wherever the cluster is."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    create(tmp_path / "c", 5, [tmp_path / "one", tmp_path / "two"], value="number")
    assert [len(os.listdir(tmp_path / name)) for name in ("c", "one", "two")] == [2, 3, 2]
    (tmp_path / "c").rename(tmp_path / "moved")
    with opened(tmp_path / "moved") as db:
        db.add(["a", "b", "c"], [1, 2, 3], vectors=[[1.0], [2.0], [3.0]])
        assert db["b"] == 2
        assert db.info().bytes_on_disk > 100_000


def test_what_was_asked_of_a_cluster_when_it_was_made_holds(tmp_path: Path) -> None:
    """A cluster opened later has the settings that it was made with, as one store has."""
    create(tmp_path / "c", 2, value="number", compatibility="gaussian", temperature=0.5)
    with opened(tmp_path / "c") as db:
        db.add(["a", "b"], [1, 2], vectors=[[1.0], [2.0]])
        assert (db.info().compatibility, db.info().temperature) == ("gaussian", 0.5)
        db.set_temperature(0.25)
    with opened(tmp_path / "c", mode="r") as db:
        assert db.info().temperature == 0.25
    for given in ({"value": "label"}, {"compatibility": "dot"}):
        with pytest.raises(InputError, match="this store"):
            softkv.open(tmp_path / "c", **given)
    with opened(tmp_path / "c", mode="r", temperature=2.0) as db:
        assert db.lookup([1.0]).temperature == 2.0


@pytest.mark.parametrize("shards", [0, 257, 1.5, True, "8"])
def test_a_cluster_has_as_many_shards_as_there_are_buckets_at_most(tmp_path: Path, shards: int) -> None:
    """A number of shards is between one and that of the buckets; any other makes nothing."""
    with pytest.raises(InputError, match="from 1 to 256 shards"):
        create(tmp_path / "c", shards)
    assert not (tmp_path / "c").exists()


def test_nothing_is_made_where_something_is(tmp_path: Path) -> None:
    """A cluster is made neither over something else nor in the place of a cluster."""
    softkv.open(tmp_path / "s").close()
    with pytest.raises(StoreExists, match="there already"):
        create(tmp_path / "s")
    create(tmp_path / "c", 2)
    for path in (str(tmp_path / "c"), f"ray:{tmp_path / 'c'}"):
        with pytest.raises(InputError, match="not started anew"):
            softkv.open(path, "n")
        with pytest.raises(InputError, match="mode is 'a'; use one of r, w"):
            softkv.open(path, "a")
    with pytest.raises(NotAStore, match="no cluster"):
        Manifest.read(str(tmp_path))
