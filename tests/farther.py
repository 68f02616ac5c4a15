"""Shards that are asked by messages, as those of other processes are, without the processes."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from softkv.doors.cluster.far import FarStore, Unanswered
from softkv.doors.cluster.handle import Cluster, create, over
from softkv.doors.cluster.hosting import READING, WRITING, HostedShard, Message
from softkv.doors.cluster.manifest import Manifest

from .databases import values_of, vectors_of

WISHES: dict[str, Any] = {"value": None, "compatibility": None, "temperature": None, "embedder": None}


class Post:
    """Messages to one shard and answers back, as bytes; they may be lost, come twice, or find nobody."""

    def __init__(self, *given: str) -> None:
        self._given = given
        self.host: HostedShard | None = HostedShard(*given)
        self.fails: Callable[[Message], bool] = lambda _: False  # whether the answer is lost
        self.twice, self.late, self.revives = False, list[bytes](), True
        self.sent, self.bytes = list[str](), 0

    def send(self, message: Message, _seconds: float, *, writes: bool, revive: bool) -> tuple[bool, Any]:
        """Whether it was done, and what came of it."""
        packed = pickle.dumps(message)
        if self.host is None:
            if not (revive and self.revives):
                raise Unanswered("nobody is there")
            self.host = HostedShard(*self._given)
        assert writes == (message.work in WRITING or (message.work == "upkeep" and message.given[0] not in READING))
        self.sent.append(message.work)
        self.late.append(packed)
        answers = [self.host.answer(pickle.loads(packed)) for _ in range(1 + self.twice)]
        found = pickle.dumps(answers[-1])
        self.bytes += len(packed) + len(found)
        if self.fails(message):
            raise Unanswered("the answer is lost")
        done: tuple[bool, Any] = pickle.loads(found)
        return done

    def die(self) -> None:
        """The process of the shard is gone, and with it what it held in memory."""
        if self.host is not None:
            self.host.close()
        self.host = None

    def close(self) -> None:
        """Let go of the store, as no actor does whose router goes."""
        self.die()


def posts_of(db: Cluster) -> list[Post]:
    """The ways to the shards of a cluster."""
    found: list[Post] = db._store._posts
    return found


def far_opened(path: Path, mode: str = "c", *, deadline: float = 5.0, posts: list[Post] | None = None) -> Cluster:
    """A cluster whose shards are asked by messages."""
    where = str(path.resolve())
    manifest = Manifest.read(where)
    ways = posts or [
        Post(manifest.path_of(where, number), one.id, manifest.id, where) for number, one in enumerate(manifest.shards)
    ]
    store: Any = FarStore(where, manifest, ways, writes=mode != "r", deadline=deadline)
    store._posts = ways
    return over(store, mode, **WISHES)


def far_clustered(path: Path, kind: str, count: int = 40, *, shards: int = 3, **options: Any) -> Cluster:
    """A new cluster of such shards with the items that `filled` gives a store, for writing."""
    create(path, shards, value=kind, **options)
    db = far_opened(path)
    keys = [f"item {number}" for number in range(count)]
    payloads = [{"n": number, "even": number % 2 == 0} for number in range(count)]
    db.add(keys, values_of(kind, count), vectors=vectors_of(count), payloads=payloads)
    return db
