"""Shards held by actors of Ray, one for each, in a namespace named by the id of the cluster.

An actor is pinned to the disk of its shard by a resource named after it, so it is restarted only where the disk is. It
is detached: it outlives the process that made it, and is found by its name. Readers do not wait for the one writer. Ray
retries no call (far.py does).

A client of Ray can run code on its machines; Ray's own token keeps others out.
"""

import json
import os
import pickle
import secrets
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from typing import Any

from softkv.database.handle import SoftKV
from softkv.doors.cluster.far import FarStore, Unanswered
from softkv.doors.cluster.handle import Cluster, over, require_mode
from softkv.doors.cluster.hosting import HostedShard, Message
from softkv.doors.cluster.manifest import Manifest
from softkv.doors.cluster.shard import Calls, at_once
from softkv.errors import HandleUnusable, InputError, MissingExtra, ServerUnreachable, SoftKVError

if "ray" not in sys.modules:  # Ray reads this setting once
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray would keep an error back for 1 to 2 seconds, to say more of it, each time that we ask an actor that has died.
    os.environ.setdefault("RAY_timeout_ms_task_wait_for_death_info", "0")
try:
    import ray
    from ray.exceptions import GetTimeoutError, RayError, RayTaskError
except ImportError as error:  # pragma: no cover - where Ray is installed
    raise MissingExtra("a cluster of machines", package="ray", extra="cluster") from error

READERS = 4  # questions that an actor answers at once
STARTS = 120.0  # seconds that an actor has to start
DEADLINE = 10.0  # seconds that a shard has to answer
CPUS = 1.0  # of each actor, which multiplies matrices with as many threads
SOON = 0.2  # seconds after which answers are no longer fetched in one call
SHARE = 0.001  # of the resource of a disk, which may have 256 shards
STORE_BYTES = 100 << 20  # of Ray's memory for large messages, where we start it


def packed(what: Any) -> bytes:
    """A message or an answer as bytes; Ray's own pickling takes a third longer, and is used for functions only."""
    with suppress(pickle.PicklingError, AttributeError, TypeError):  # of functions that have no name
        found = pickle.dumps(what, pickle.HIGHEST_PROTOCOL)
        if b"__main__" not in found:  # which is another one there
            return found
    return bytes(ray.cloudpickle.dumps(what))


@ray.remote(concurrency_groups={"readers": READERS, "writer": 1}, max_task_retries=0, max_restarts=-1)
class ShardActor:
    """The process of a shard."""

    def __init__(self, *given: str) -> None:
        self._shard = HostedShard(*given)

    @ray.method(concurrency_group="readers")
    def read(self, message: bytes) -> bytes:
        """Answer a message that changes nothing."""
        return packed(self._shard.answer(pickle.loads(message)))

    @ray.method(concurrency_group="writer")
    def write(self, message: bytes) -> bytes:
        """Answer a message that changes something."""
        return packed(self._shard.answer(pickle.loads(message)))

    @ray.method(concurrency_group="writer")
    def close(self) -> None:
        """Close the store, once nothing is written any more."""
        self._shard.close()


def joined_ray(manifest: Manifest, path: str, address: str | None) -> bool:
    """Join Ray at an address, else that of this machine, else start one here; returns whether one was started."""
    if ray.is_initialized():
        there = ray.get_runtime_context().gcs_address
        try:
            _require_listening(there)
        except OSError:  # its head is lost; what was started in its place is another Ray
            ray.shutdown()
        else:
            if address in (None, "auto", there):
                return False
            raise InputError(f"this process has joined Ray at {there}, and joins no other: close what is open there.")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        count = len(manifest.shards)
        disks = {disk_of(manifest, path, number): 1.0 for number in range(count)}
        own = {"num_cpus": max(count, os.cpu_count() or 1), "resources": disks, "object_store_memory": STORE_BYTES}
        with suppress(ValueError):  # there is one already, which has what it has
            _require_token()
            ray.init(include_dashboard=False, **own, **quiet)
            return True
    try:
        _require_listening(address)
        ray.init(address=address, **quiet)
    except (OSError, RayError, RuntimeError) as error:
        raise ServerUnreachable(f"Ray at {address or 'this machine'} does not answer: {error}") from error
    return False


def _require_token() -> None:
    """Make sure there is a token that other users cannot read; they could read one made by Ray."""
    path = os.path.expanduser("~/.ray/auth_token")
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        with suppress(OSError):  # it is there; or Ray says why none can be
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32))


def _require_listening(address: str | None, seconds: float = DEADLINE) -> None:
    """Fail at once if nothing listens at an address, where Ray would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host, int(port)), timeout=max(seconds, SOON)).close()


def disk_of(manifest: Manifest, path: str, number: int) -> str:
    """The resource of machines that have the disk of a shard: named after the directory in which the shard lies."""
    return f"disk:{os.path.dirname(manifest.path_of(path, number))}"


class Sent(Exception):
    """Raised when a message was sent: its answer is waited for once the messages to all shards are sent."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer


class Round(threading.local):
    """The state of a thread: whether it only sends calls to all shards, or the answer that its next call gets."""

    beginning, answer = False, None

    def pop(self) -> Any:
        """The answer, or what to wait for; returned once."""
        found, self.answer = self.answer, None
        return found


_round = Round()


def all_begun(calls: Calls) -> list[Any]:
    """The results of calls, all of which are sent before the first is waited for.

    A thread for each call would take several times as long as the messages themselves.
    """
    found, begun = dict[int, Any](), dict[int, Any]()
    for number, call in enumerate(calls):
        _round.beginning = True
        try:
            found[number] = call()
        except Sent as one:
            begun[number] = one.answer
        finally:
            _round.beginning = False
    late = list[int]()
    try:  # to get all in one call takes less than to wait for them and get each
        begun = dict(zip(begun, ray.get(list(begun.values()), timeout=SOON) if begun else [], strict=True))
    except RayError:  # of one, or it is not there soon
        ready = set(ray.wait(list(begun.values()), num_returns=len(begun), timeout=0)[0])
        late = [number for number, answer in begun.items() if answer not in ready]

    def finished(number: int) -> Any:
        _round.answer = begun[number]
        try:
            return calls[number]()
        finally:
            _round.answer = None

    found |= {number: finished(number) for number in begun if number not in late}
    found |= dict(zip(late, at_once([partial(finished, number) for number in late]), strict=True))
    return [found[number] for number in range(len(calls))]


class ActorSender:
    """Sends messages to the actor of one shard."""

    def __init__(self, manifest: Manifest, path: str, number: int) -> None:
        # By the store as well: after the cluster was given other shards, an actor of an old one must not be found.
        self._name, self._namespace = f"shard-{number:03}-{manifest.shards[number].id[:8]}", manifest.id
        self._given = manifest.path_of(path, number), manifest.shards[number].id, manifest.id, path
        self._options = {"num_cpus": CPUS, "resources": {disk_of(manifest, path, number): SHARE}}
        self._actor: Any = None

    def send(self, message: Message, seconds: float, *, writes: bool, revive: bool) -> tuple[bool, Any]:
        """Whether it was done, and the result; `Unanswered` if that is not known after so many seconds."""
        if not ray.is_initialized():  # it would start a Ray of its own
            raise HandleUnusable(f"Ray has ended, which held {self._given[0]}. Open the cluster again.")
        try:
            actor = self._found(revive=revive, seconds=seconds)
            asked = _round.pop() or (actor.write if writes else actor.read).remote(packed(message))
            if _round.beginning:
                raise Sent(asked)
            answer = asked if isinstance(asked, bytes) else ray.get(asked, timeout=max(0.0, seconds))
            found: tuple[bool, Any] = pickle.loads(answer)
        except GetTimeoutError as error:
            raise Unanswered(f"no answer in {seconds:.1f} seconds") from error
        except RayTaskError as error:  # which no message should come to
            return False, error.cause
        except (OSError, RayError, ValueError) as error:
            self._actor = None
            raise Unanswered(str(error).partition("\n")[0]) from error
        return found

    def _found(self, *, revive: bool, seconds: float = DEADLINE) -> Any:
        if self._actor is None:
            _require_listening(ray.get_runtime_context().gcs_address, seconds)  # Ray waits for minutes for a head
            named = {"name": self._name, "namespace": self._namespace}
            if revive:
                options = {**named, **self._options, "lifetime": "detached", "get_if_exists": True}
                kind: Any = ShardActor
                self._actor = kind.options(**options).remote(*self._given)
            else:
                self._actor = ray.get_actor(**named)
        return self._actor

    def stop(self) -> None:
        """End the actor for good, once it has finished writing."""
        with suppress(OSError, RayError, ValueError):
            actor = self._found(revive=False)
            with suppress(RayError):
                ray.get(actor.close.remote(), timeout=DEADLINE)
            ray.kill(actor)

    def close(self) -> None:
        """Forget the actor, which goes on."""
        self._actor = None


class ActorStore(FarStore):
    """The shards of a cluster, each held by an actor; Ray ends with it where it was started for it."""

    def __init__(self, path: str, manifest: Manifest, *, writes: bool, deadline: float, started: bool) -> None:
        self._senders = [ActorSender(manifest, path, number) for number in range(len(manifest.shards))]
        self._started = started
        super().__init__(path, manifest, self._senders, writes=writes, deadline=deadline, calls=all_begun)

    def close(self) -> None:
        """Release all shards; other processes may go on using them."""
        if not self._closed and self._started:
            for sender in self._senders:
                sender.stop()
        super().close()
        if self._started:
            self._started = False
            ray.shutdown()


def opened(path: str, mode: str, *, address: str | None, wait: float, **options: Any) -> Cluster:
    """The cluster at a path, with its shards held by actors; each has `wait` seconds to answer, by default DEADLINE."""
    require_mode(path, mode)
    manifest = Manifest.read(path)
    started = joined_ray(manifest, path, address)
    store = ActorStore(path, manifest, writes=mode != "r", deadline=wait or DEADLINE, started=started)
    try:
        return over(store, mode, **options)
    except BaseException:
        store.close()
        raise


def processes(db: SoftKV) -> list[int | None]:
    """The process id of each shard, on its machine; None if it does not answer."""
    store: Any = db._store
    if not isinstance(store, ActorStore):
        raise InputError(f"expected a cluster whose shards processes hold; open it as ray:{db.path}.")
    return _processes(store)


def _processes(store: ActorStore) -> list[int | None]:
    def asked(shard: Any) -> int | None:
        with suppress(SoftKVError):
            return int(shard.impatient.read("process"))
        return None

    return at_once([partial(asked, shard) for shard in store.shards])


def start(path: str, address: str | None) -> list[int | None]:
    """Have actors hold the shards of a cluster until `stop`; returns their process ids."""
    manifest = Manifest.read(path)
    if joined_ray(manifest, path, address):  # it would end with this process
        ray.shutdown()
        _start_to_stay(manifest, path)
        joined_ray(manifest, path, None)
    store = ActorStore(path, manifest, writes=False, deadline=STARTS, started=False)
    store.newest()
    return _processes(store)


def _start_to_stay(manifest: Manifest, path: str) -> None:
    """Start Ray on this machine, at a port that is free; it goes on when this process has ended."""
    _require_token()
    disks = {disk_of(manifest, path, number): 1.0 for number in range(len(manifest.shards))}
    given = [f"--num-cpus={max(len(manifest.shards), os.cpu_count() or 1)}", f"--resources={json.dumps(disks)}"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--port=0", "--include-dashboard=false"]
    ran = subprocess.run([*command, *given], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if ran.returncode:
        raise ServerUnreachable(f"Ray cannot be started on this machine: {ran.stderr.strip() or ran.returncode}")


def stop(path: str, address: str | None) -> None:
    """End the actors of a cluster, once all they were sent is written."""
    manifest = Manifest.read(path)
    joined_ray(manifest, path, address)  # not "auto", by which Ray joins whatever Ray of the machine it finds
    for number in range(len(manifest.shards)):
        ActorSender(manifest, path, number).stop()
