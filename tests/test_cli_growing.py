"""`softkv cluster grow`: more shards, from the shell."""

from pathlib import Path

from softkv.doors.cluster import create

from .clusters import clustered, opened
from .commands import ran
from .databases import vectors_of


def test_a_cluster_grows(tmp_path: Path) -> None:
    """What became of it is said, and which items have other names."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with clustered(tmp_path / "c", "number") as db:
        db.add(values=range(40), vectors=vectors_of(40, seed=1))
    done = ran("cluster", "grow", tmp_path / "c", "--shards", "6", "--disk", disk)
    assert (done.code, done.out) == (0, "")
    assert "has 6 shards; " in done.err
    assert "of them have no key, and so another name" in done.err
    assert len(list(disk.iterdir())) == 3
    with opened(tmp_path / "c", mode="r") as db:
        assert len(db) == 80
        done = ran("cluster", "grow", tmp_path / "c", "--shards", "7")
        assert "is still read; it is removed when the cluster is next written to" in done.err


def test_a_cluster_does_not_shrink(tmp_path: Path) -> None:
    """Fewer shards than there are is refused, and the message says how many there are."""
    create(tmp_path / "c", 3)
    done = ran("cluster", "grow", tmp_path / "c", "--shards", "2")
    assert done.code == 1
    assert "expected from 3 shards" in done.err
