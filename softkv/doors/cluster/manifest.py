"""The manifest of a cluster: which shards there are, where they lie, and which keys each of them has.

The directory of a cluster holds numbered manifests, of which the highest counts. A manifest is written under another
name, synced, and then linked to its own, so that it is there whole or not at all, and never replaces another. Keys go
to 256 buckets by hash, buckets to shards.

Does not open shards.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from zlib import crc32

from softkv.errors import FormatTooNew, NotAStore, StoreDamaged, StoreExists
from softkv.storage.disk import files
from softkv.storage.disk.named import MANIFEST

MOST = 256  # shards, and buckets
FORMAT = 1
_LONGEST = 1 << 24  # bytes of a manifest that are read


def bucket_of(key: str) -> int:
    """The bucket of a key."""
    encoded = key.encode(errors="surrogatepass")  # invalid keys are refused by the shard that gets them
    return hashlib.blake2b(encoded, digest_size=8, person=b"softkv-bucket").digest()[0]


def bucket_without_key(batch: str, position: int) -> int:
    """The bucket of an item without a key, by its batch and its place in it."""
    return bucket_of(f"#{position} {batch}")


@dataclass(frozen=True, slots=True)
class Placed:
    """A shard: the id of its store, and its path, absolute or relative to the directory of the cluster."""

    id: str
    path: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A cluster as of one moment."""

    id: str
    epoch: int  # its number
    shards: tuple[Placed, ...]
    buckets: tuple[int, ...]  # the shard of each
    settings: Mapping[str, Any] = field(default_factory=dict)  # of all shards alike

    @classmethod
    def first(cls, identity: str, shards: Sequence[Placed], settings: Mapping[str, Any]) -> "Manifest":
        """The manifest of a new cluster, whose buckets are shared out evenly."""
        buckets = tuple(bucket * len(shards) // MOST for bucket in range(MOST))
        return cls(identity, 1, tuple(shards), buckets, dict(settings))

    @property
    def settings_of_shards(self) -> dict[str, Any]:
        """The settings of each shard: the temperature as if chosen by hand, whatever its size, and no guard."""
        found = {name: one for name, one in self.settings.items() if name != "guard"}
        if "temperature" in found:
            found["temperature"] = {**found["temperature"], "origin": "given"}
        return found

    def shard_of(self, key: str) -> int:
        """The shard of a key."""
        return self.buckets[bucket_of(key)]

    @property
    def changes(self) -> int:
        """How many manifests have followed the first; they count in the commit of a cluster as those of shards do."""
        return self.epoch - 1

    def with_settings(self, settings: Mapping[str, Any]) -> "Manifest":
        """The next manifest, with other settings."""
        return replace(self, epoch=self.epoch + 1, settings=dict(settings))

    def path_of(self, directory: str, shard: int) -> str:
        """Where a shard lies."""
        return os.path.join(directory, self.shards[shard].path)

    def is_followed(self, directory: str) -> bool:
        """Whether there is a later one."""
        return os.path.exists(_path(directory, self.epoch + 1))

    def write(self, directory: str) -> None:
        """Write the manifest to its place, which must be free."""
        content = json.dumps({"format": FORMAT, **asdict(self)}, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        path = _path(directory, self.epoch)
        beside = f"{path}.{secrets.token_hex(8)}"  # not the process id, which another writer in a container may have
        files.write_new(beside, content + b"crc32 %08x\n" % crc32(content))
        try:
            os.link(beside, path)
        except FileExistsError as error:
            raise StoreExists(f"{path} is there already: another process has changed the cluster.") from error
        except OSError as error:
            raise files.translated(error, f"cannot make {path}") from error
        finally:
            with suppress(OSError):
                os.unlink(beside)
        files.sync_directory(directory)

    @classmethod
    def read(cls, directory: str) -> "Manifest":
        """The current manifest of a cluster."""
        name = _names(directory)[-1]
        path = os.path.join(directory, name)
        content, _, sealed = files.start_of(path, _LONGEST).rpartition(b"crc32 ")
        if sealed != b"%08x\n" % crc32(content):
            raise StoreDamaged(f"{path} is not what was written. Bring the file back from a copy of the cluster.")
        told = json.loads(content)
        if told.pop("format") != FORMAT:
            raise FormatTooNew(f"{path} was written by a newer softkv. Update softkv to open this cluster.")
        told["shards"] = tuple(Placed(**one) for one in told["shards"])
        found = cls(**told | {"buckets": tuple(told["buckets"])})
        owners = set(found.buckets)
        if _name(found.epoch) != name or len(found.buckets) != MOST or not owners <= set(range(len(found.shards))):
            raise StoreDamaged(f"{path} is not of this number, or not of these shards. Bring back what was there.")
        return found


def _name(epoch: int) -> str:
    return f"manifest-{epoch:010}.json"


def _path(directory: str, epoch: int) -> str:
    return os.path.join(directory, _name(epoch))


def _names(directory: str) -> list[str]:
    names = [name for name in files.list_directory(directory) if MANIFEST.match(name)]
    if not names:
        raise NotAStore(f"{directory} holds no manifest, so it is no cluster. `softkv cluster create` makes one.")
    return names
