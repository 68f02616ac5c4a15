"""Methods of a handle for upkeep: compaction, indexes, learning, another embedder.

This file takes the locks and saves the settings; the work itself is done elsewhere.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from softkv.asking.embedding import AnyEmbedder
from softkv.asking.indexed import NAME
from softkv.asking.learned import carried
from softkv.asking.profile import Profile
from softkv.asking.proposers import PROPOSER
from softkv.asking.scan import require_items
from softkv.asking.view import View
from softkv.database import training
from softkv.database.begun import NAME as UNFINISHED
from softkv.database.guarding import calibrated, keep_count, remembered
from softkv.database.held_out import HOLD_OUT, checked_hold_out
from softkv.database.indexing import Wanted, build, forecast_of
from softkv.database.proposing import build_proposer, forecast_of_proposer
from softkv.database.reader import Reader
from softkv.database.rechecking import Rechecking, still_checked
from softkv.database.reembedding import reembed
from softkv.database.settling import settle
from softkv.database.summary import Info
from softkv.database.training import Fit
from softkv.errors import InputError, StoreError
from softkv.guard.calibrating import Promise
from softkv.guard.guard import Guard
from softkv.index.forecast import Forecast
from softkv.learning.tuning import Tuned
from softkv.logs import log_of
from softkv.maths.blas import at_most
from softkv.progress import Progress
from softkv.storage import Store

LOG = log_of(__name__)


class Upkeep(Reader):
    """A handle that may change how a store lies on the disk, and what it has learned."""

    _store: Store
    _changing: threading.RLock  # held by who changes something, and taken before the other
    _lock: threading.RLock
    _seen: View | None  # what was read last; forgotten by who would keep old files with it
    _rechecking: Rechecking  # it pins what it reads, too

    def _new_view(self) -> View:
        raise NotImplementedError

    def snapshot(self) -> Any:
        """The store as it is now."""
        raise NotImplementedError

    @at_most(1)
    def _settle(self) -> None:
        """After a write: note how it changes the index, and go on with a check of the index."""
        settle(self._store, self._view)
        self._rechecking.go_on(self._store, self._view)

    def _unpin(self) -> None:
        """Release whatever keeps the files of this generation."""
        self._seen = None
        self._rechecking.drop()

    def compact(self) -> None:
        """Leave deleted and replaced items behind, and give their space back.

        Other handles read on meanwhile; lookups of other threads through this one wait. An index goes on: items that
        came after it was built are laid into their lists.
        """
        with self._changing:
            view = self._view()
            relaid = view.findings.indexes.relaid(view.snapshot)
            order, index = (np.flatnonzero(view.snapshot.live), None) if relaid is None else relaid
            kept = {} if index is None else {NAME: still_checked(view, index).encoded()}
            kept |= carried(view.snapshot, view.profile.projection, order)
            keep_count(self._store, view.snapshot)
            self._unpin()
            del view
            self._store.compact(None if relaid is None else order, index=kept)
            self._settle()

    def build_index(
        self,
        kind: str = "lists",
        *,
        lists: int | None = None,
        queries: Any = None,
        temperatures: tuple[float, float] | None = None,
        backend: str = "auto",
        whole: bool = False,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Info:
        """Build an index of all items, so that lookups read a few percent of them; returns what `info` says then.

        Lookups and adds go on meanwhile, and wait only while rows are laid in their order. What is added later finds
        its list as it is added. Where there is an index that the items have not outgrown, its lists are refined: those
        that have doubled are divided, those that have emptied join others, all are rehearsed. Where nothing has changed
        since, it stays as it is.

        Args:
            kind: "lists", or one that only proposes rows for the k best: "hnsw", "ivf", "pq", "rabitq" or a factory
                string of FAISS. Their answers have no stated error; where there are lists as well, these answer.
            lists: How many lists the items are divided into.
            queries: Vectors like those that will be asked, at least 100, to calibrate on; otherwise items are.
            temperatures: The lowest and the highest temperature to calibrate for; otherwise around that of the store.
            backend: "cpu", "gpu", or "auto" for a GPU where there is one.
            whole: Whether all lists are made anew, also where those there are could be refined.
            progress: Called with (stage, done, all).
        """
        self._store.require_finished()
        wanted = _wanted(kind, Wanted(lists, queries, temperatures, backend, whole))
        with self._lock:
            require_items(self._view().snapshot)
            self._unpin()
        if wanted is None:
            build_proposer(self._store, self._changing, self._new_view, kind, backend, progress)
        else:
            build(self._store, self._changing, self._new_view, wanted, progress)
            with self._changing:
                self._rechecking.drop()
                self._settle()
        return self.info()

    def forecast_index(
        self,
        kind: str = "lists",
        *,
        lists: int | None = None,
        queries: Any = None,
        temperatures: tuple[float, float] | None = None,
        whole: bool = False,
    ) -> Forecast:
        """What `build_index` would take: seconds, and room on the disk; measures for a moment.

        Good to a factor of two, where nothing else runs. A build that was begun takes what is left of it. For another
        kind than lists a small one is built.
        """
        wanted = _wanted(kind, Wanted(lists, queries, temperatures, whole=whole))
        with self._lock:
            view = self._view()
            require_items(view.snapshot)
        return forecast_of_proposer(view, kind) if wanted is None else forecast_of(view, wanted)

    def tune(
        self,
        *,
        compatibility: str | Sequence[str] | None = None,
        k: int | Sequence[int] | None = None,
        hold_out: float = HOLD_OUT,
        seed: int = 0,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Tuned:
        """Choose the temperature at which items, left out one at a time, are best predicted by the others.

        By the log-loss of labels, and the squared error of numbers and vectors. Texts tell no right from wrong, so for
        these it is the temperature at which about ten items contribute. The store asks so from now on.

        >>> import softkv, tempfile, os
        >>> path = os.path.join(tempfile.mkdtemp(), "waves.softkv")
        >>> with softkv.open(path, value="number", compatibility="gaussian") as db:
        ...     added = db.add(vectors=[[x / 50] for x in range(300)], values=[x % 100 for x in range(300)])
        ...     tuned = db.tune()
        ...     tuned.temperature < db.info().temperature * 1.001
        True

        Args:
            compatibility: Ways to compare that are tried; otherwise only that of the store. The best is remembered.
            k: Numbers of best items that are tried as well as all of them. The best is told; remembered is the best
                temperature of all items, since lookups ask all unless they say otherwise.
            hold_out: The share of items that take no part, so that `guard` can be calibrated on them; with 0 it cannot.
            seed: Chooses the items that are left out and asked where there are more than 11,585; all others answer.
            progress: Called with (what, done, all).
        """
        self._store.require_finished()
        ks, hold_out = training.checked_ks(k), checked_hold_out(hold_out)
        with self._lock:
            view = self._new_view()
            require_items(view.snapshot)
            ways = training.checked_ways(view, compatibility)
        tuned = training.tune(view, compatibilities=ways, ks=ks, hold_out=hold_out, seed=seed, told=progress)
        with self._changing, self._lock:
            training.remember_temperature(self._store, view, tuned, hold_out)
        return tuned

    def fit(
        self,
        queries: Any = None,
        targets: Any = None,
        *,
        rank: int | None = None,
        planes: bool | None = None,
        hold_out: float = HOLD_OUT,
        seed: int = 0,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Fit:
        """Learn to compare: the metric by which items, left out, are best predicted by the others.

        No vector that is stored changes. Where items that took no part are predicted better by it, lookups compare so
        from now on, at temperature 1 unless they say otherwise or `projection=False`, and an index has to be built
        again to help them; else nothing changes. What is learned is learned anew by the next `fit`, and forgotten by
        `forget_fit` and `reembed`.

        Args:
            queries: Texts or vectors like those that will be asked, if they are unlike the items, with their `targets`.
            targets: What they should be answered: labels, numbers or vectors.
            rank: How many directions count; by default all, at most 384.
            planes: For numbers and few features: whether they are read off a plane through the weighted items, which
                where they rise or fall is closer than their mean. By default whatever turns out better.
            hold_out: The share of items that take no part at all, as in `tune`.
            seed: Chooses the items that are asked, and those that take no part and say when it is enough.
            progress: Called with (what, done, all).
        """
        self._store.require_finished()
        with self._lock:
            view = self._new_view()
            require_items(view.snapshot)
            if queries is not None:
                queries = self._queries(view, queries, None, None)[0]
        return training.learn(
            self._store,
            self._changing,
            view,
            queries=queries,
            targets=targets,
            rank=rank,
            planes=planes,
            hold_out=hold_out,
            seed=seed,
            told=progress,
        )

    def forget_fit(self) -> bool:
        """Compare as if nothing had ever been learned; returns whether anything had been."""
        with self._changing, self._lock:
            return training.remember_metric(self._store, None)

    def guard(
        self,
        wrong_at_most: float = 0.05,
        strangers_at_most: float | None = None,
        confidence: float | None = 0.95,
        queries: Any = None,
        answers: Any = None,
        strangers: Any = None,
        *,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Guard:
        """Find out how much evidence right answers have, and how far off answers are; they say so from then on.

        The items that `tune` and `fit` left out are asked of all others: what answers so given say then is promised for
        queries like the items. See `known`, `familiarity`, `labels_within`, `interval` and `radius` of an answer.

        Args:
            wrong_at_most: Of labels, the share of known answers that may be wrong; of other values, the share of
                queries like the items that may be said to be unknown.
            strangers_at_most: The share of strangers that may be said to be known.
            confidence: How sure both are to be. With None they hold on average over the items left out, which takes
                fewer of them, and of labels the share is of all queries: of those that are known and wrong.
            queries: Texts or vectors that were not given to `fit`, like those that will be asked, instead of items. All
                items answer them then, and the promise is for real answers. Those that are items, or have the vector
                of one, are left out and counted.
            answers: What they should be answered, unless values are texts: labels, numbers or vectors.
            strangers: Queries that no item answers. Without `strangers_at_most` they are measured, and change nothing.
            progress: Called with (what, done, all).
        """
        self._store.require_finished()
        promise = Promise(wrong_at_most, strangers_at_most, confidence)
        with self.snapshot() as frozen:
            asked = {"queries": queries, "answers": answers, "strangers": strangers}
            found, generation = calibrated(frozen, promise, **asked, told=progress), frozen._view().snapshot.generation
        with self._changing, self._lock:
            with self._store.snapshot() as now:
                if now.generation != generation:  # the guard counts changes by rows, which have moved
                    raise StoreError(f"{self._store.path} was compacted while the guard was made. Make it again.")
            self._store.configure(remembered(self._store.settings, found))
        return found

    def forget_guard(self) -> bool:
        """Say nothing of answers any more; returns whether there was a guard."""
        with self._changing, self._lock:
            there = "guard" in self._store.settings
            if there:
                self._store.configure(remembered(self._store.settings, None))
            return there

    def drop_index(self) -> None:
        """Forget the index; lookups scan again."""
        with self._changing:
            for name in (NAME, PROPOSER, UNFINISHED):
                self._store.drop_index(name)
        LOG.info("dropped the index")

    def reembed(self, embedder: AnyEmbedder, *, progress: Progress | None = None) -> int:
        """Embed all items again with another model; returns how many.

        When interrupted, calling it again goes on, with None for the model that was begun with. Until it is done,
        nothing else can be written; `abandon_reembedding` drops what was begun.
        """
        with self._changing:
            self._unpin()
            count = reembed(self._store, embedder, progress)
            remembered = Profile.of(self._store.settings).embedder
            if remembered is not None:
                self._embedding.go_on_with(embedder, remembered)
            return count

    def abandon_reembedding(self) -> None:
        """Drop a change of embedder that was begun; the store stays as it was."""
        with self._changing:
            self._store.abandon()


def _wanted(kind: str, wanted: Wanted) -> Wanted | None:
    """The options of lists; None for another kind, which has no options."""
    if kind == "lists":
        return wanted
    if wanted.whole or any(one is not None for one in (wanted.lists, wanted.queries, wanted.temperatures)):
        raise InputError(f"expected lists, queries, temperatures and whole only for lists, not for {kind!r}.")
    return None
