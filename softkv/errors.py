"""Everything that can go wrong, as one tree; a message says what was expected, what was got, and what to do.

SoftKVError
├── InputError (ValueError)           what was given cannot be used; nothing was written
│   ├── ShapeError                    widths or counts disagree
│   ├── KindError                     values of the wrong kind, dtype or mixture
│   ├── NotFinite                     NaN or infinity
│   ├── ZeroVector                    a vector without a direction, where directions are compared
│   ├── TemperatureError              a temperature that is not above 0
│   ├── NothingToBlend                there is no row to average
│   │   ├── EmptyStore                there are no rows at all
│   │   └── AllMasked                 a query may see none of them
│   ├── NotExpressible                a compatibility or heads that this lookup cannot express
│   ├── KeyTextError                  a key that cannot be a key
│   ├── DuplicateKey                  a key that is already there, or twice in one batch
│   ├── BatchMismatch                 a batch id that was given to other content before
│   ├── PayloadError                  a payload that is not JSON, too deep or too large
│   ├── FilterError                   a where= that cannot be understood
│   ├── UnknownText                   a text of which the embedder knows nothing
│   ├── EmbedderNeeded                a text where this store can only compare vectors
│   ├── BadRecord                     a file, or a line of one, that cannot be read as items
│   └── NotRemote                     what cannot be sent to a server, such as a function
├── EmbedderError                     the model that turns texts into vectors
│   ├── EmbedderNotFound              there is none of this name
│   └── EmbedderMismatch              it behaves differently from the one this store was made with
├── KeyMissing (KeyError)             no item has this key
├── MissingExtra (ImportError)        an optional dependency is not installed
├── ServerError                       a server cannot answer, or is none of stores
│   ├── ServerUnreachable             nobody answers there, or the answer broke off
│   ├── Unauthorized                  without a token, or with a wrong one
│   ├── Busy                          the server has as much to do as it takes on; try again later
│   ├── DeadlinePassed                the answer did not come in the time that was given
│   └── SnapshotExpired               a snapshot that the server has closed, or never opened
└── StoreError                        the store on disk, or the handle on it
    ├── StoreNotFound (FileNotFoundError)
    ├── StoreExists (FileExistsError)
    ├── NotAStore                     something else lives at that path
    ├── StoreDamaged                  bytes on disk that cannot be believed
    │   └── IndexDamaged              those of an index file: nothing is lost, build it again
    ├── FormatTooNew                  written by a newer softkv
    ├── AccessRefused (PermissionError)  not ours to open, or not ours to write
    │   └── WritingUnsupported        a platform or file system on which writing is not safe
    ├── StoreLocked                   another process is the writer
    ├── BackupRefused                 a directory that is no earlier backup of this store
    ├── WriterFenced                  another writer has taken over since
    ├── PartlyAdded                   some shards have done their part of a change, and others have not
    ├── OutOfReach                    shards that do not answer
    ├── Unfinished                    a change of the embedder has begun; finish or drop it first
    ├── StorageFull (OSError)         no space left; nothing of the batch was kept
    ├── StorageFailed (OSError)       the operating system reported an error
    │   └── CommitUncertain           the commit may or may not have happened; reopen to see
    └── HandleUnusable                this handle is done; open the store again
        ├── HandleClosed              it was closed
        ├── HandlePoisoned            a write to disk failed before
        ├── StoreReplaced             another copy of the store lies in its place
        └── HandleForked              it belongs to the parent process
"""

from collections.abc import Sequence
from functools import partial


class SoftKVError(Exception):
    """Every error that softkv raises on purpose."""

    def __str__(self) -> str:
        # Subtle: KeyError and OSError format their arguments in their own ways; ours are always one message.
        return str(self.args[0]) if self.args else ""


class InputError(SoftKVError, ValueError):
    """What was given cannot be used. Nothing was written."""


class ShapeError(InputError):
    """Widths or counts disagree."""


class KindError(InputError):
    """Values of the wrong kind, of the wrong dtype, or mixed."""


class NotFinite(InputError):
    """NaN or infinity where a number is needed."""


class ZeroVector(InputError):
    """A vector without a direction, where directions are compared."""


class TemperatureError(InputError):
    """A temperature that is not a finite number above 0."""


class NothingToBlend(InputError):
    """There is no row to average."""


class EmptyStore(NothingToBlend):
    """There are no rows at all."""


class AllMasked(NothingToBlend):
    """A query may see no row: masks, or biases of -inf, leave none."""


class NotExpressible(InputError):
    """A compatibility or heads that cannot be what was asked for."""


class KeyTextError(InputError):
    """A key that cannot be a key: too long, with a NUL, or starting with '#'."""


class DuplicateKey(InputError):
    """A key that the store already holds, or that stands twice in one batch; `keys` names them."""

    def __init__(self, message: str, keys: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.keys = tuple(keys)


class BatchMismatch(InputError):
    """A batch id under which other content was written before. Nothing was written now."""


class PayloadError(InputError):
    """A payload that is not JSON, too deep or too large."""


class FilterError(InputError):
    """A where= that cannot be understood: an unknown operator, or an operand that no payload could hold."""


class UnknownText(InputError):
    """A text of which the embedder knows nothing; a zero vector in its place would be like everything and nothing."""


class EmbedderNeeded(InputError):
    """A text was given where this store can only compare vectors."""


class BadRecord(InputError):
    """A file, or a line of one, that cannot be read as items."""


class NotRemote(InputError):
    """What cannot be sent to a server: a function, or an embedder of one's own."""


class EmbedderError(SoftKVError):
    """The model that turns texts into vectors."""


class EmbedderNotFound(EmbedderError):
    """There is no embedder of this name."""


class EmbedderMismatch(EmbedderError):
    """The embedder behaves differently from the one that this store was made with."""


class KeyMissing(SoftKVError, KeyError):
    """No item has this key."""


class MissingExtra(SoftKVError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, needed: str, *, package: str, extra: str) -> None:
        self._given = (needed, package, extra)
        super().__init__(f"{needed} needs {package}, which is not installed: pip install 'softkv[{extra}]'")

    def __reduce__(self) -> tuple[object, ...]:
        needed, package, extra = self._given
        return partial(type(self), package=package, extra=extra), (needed,)


class ServerError(SoftKVError):
    """A server cannot answer, or is none of stores."""


class ServerUnreachable(ServerError):
    """There is no answer from this address, or it broke off."""


class Unauthorized(ServerError):
    """The server asks for a token, and got none or a wrong one."""


class Busy(ServerError):
    """The server has as much to do as it takes on; `after` says in how many seconds to try again, if that is known."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class DeadlinePassed(ServerError):
    """The answer did not come in the time that was given for it."""


class SnapshotExpired(ServerError):
    """A snapshot that the server has closed, unused for a minute or in a restart, or that it never opened."""


class StoreError(SoftKVError):
    """The store on disk, or the handle on it."""


class StoreNotFound(StoreError, FileNotFoundError):
    """There is no store at this path."""


class StoreExists(StoreError, FileExistsError):
    """There is already something at this path."""


class NotAStore(StoreError):
    """Something other than a softkv store lives at this path."""


class StoreDamaged(StoreError):
    """Bytes on disk that cannot be believed."""


class IndexDamaged(StoreDamaged):
    """An index file is missing or not what was written. Nothing is lost: build it again."""


class FormatTooNew(StoreError):
    """The store was written by a newer softkv."""


class AccessRefused(StoreError, PermissionError):
    """The store may not be opened, or not be written, by this user or handle."""


class WritingUnsupported(AccessRefused):
    """A platform or a file system on which writing is not safe."""


class StoreLocked(StoreError):
    """Another process is writing to this store; `pid` is its number when it is known."""

    def __init__(self, message: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class BackupRefused(StoreError):
    """A directory that is no earlier backup of this store, so nothing of it may be written there."""


class WriterFenced(StoreError):
    """Another writer has taken over since this handle was opened."""


class PartlyAdded(StoreError):
    """Some shards have done their part of a change, and others have not. Making it again, as `batch`, completes it.

    `done`, `refused` and `unknown` name the shards that have done it, have not, and may have.
    """

    def __init__(
        self,
        message: str,
        batch: str | None = None,
        done: Sequence[str] = (),
        refused: Sequence[str] = (),
        unknown: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.batch, self.done, self.refused, self.unknown = batch, tuple(done), tuple(refused), tuple(unknown)


class OutOfReach(StoreError):
    """Shards that do not answer; `shards` names them."""

    def __init__(self, message: str, shards: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.shards = tuple(shards)


class Unfinished(StoreError):
    """A change of the embedder has begun. Finish it by `db.reembed(None)`, or `db.abandon_reembedding()`."""


class StorageFull(StoreError, OSError):
    """No space is left. Nothing of the batch was kept; after making room, write again."""


class StorageFailed(StoreError, OSError):
    """The operating system reported an error while reading or writing."""


class CommitUncertain(StorageFailed):
    """The commit may or may not have happened. Reopen the store and look at its commit number."""


class HandleUnusable(StoreError):
    """This handle cannot be used any more. Open the store again."""


class HandleClosed(HandleUnusable):
    """The handle was closed."""


class HandlePoisoned(HandleUnusable):
    """A write to disk failed before, so nothing this handle believes can be trusted."""


class StoreReplaced(HandleUnusable):
    """Another copy of the store, perhaps an older one, has taken the place of the one that this handle opened."""


class HandleForked(HandleUnusable):
    """The handle belongs to the parent process; open the store again in this one."""
