"""Lookups by several threads at once, answered as one batch.

A lookup keeps all processors busy by itself, since its matrix products run on all of them. Several at once would spend
more time waiting for each other than computing. So one thread computes at a time while the others wait; the next one
answers all waiting questions with the same options as a batch, which takes little longer than a single lookup. Threads
that were just answered mostly ask again, so it waits for them, but never longer than a share of the time that the last
batch took. A single thread never waits.

Only single queries over all items wait. A batch, a filter, a mask or heads are computed at once, beside the others.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, Generic, TypeVar

import numpy as np

from softkv.answer import Answers
from softkv.asking.joined import part_of
from softkv.asking.question import Question

CommitT = TypeVar("CommitT")  # a commit of a store
AskOf = Callable[[CommitT, Question], Answers]
MOST = 64  # questions that are answered together
SHARE = 0.2  # of the time of the last answers, to wait for more questions at most


class _Waiting(Generic[CommitT]):
    """A question of one thread and its answer; if it gets none, its thread answers it by itself."""

    def __init__(self, asked: CommitT, question: Question) -> None:
        self.asked, self.question = asked, question
        self.answers: Answers | None = None
        self.turn = threading.Event()  # set when it is answered, or when it is the turn of its thread
        self.thread = threading.get_ident()

    def suits(self, other: "_Waiting[CommitT]") -> bool:
        """Whether two questions differ only in their queries."""
        mine, others = self.question, other.question
        names = (one.name for one in fields(Question) if one.name not in ("queries", "rounded"))
        return self.asked is other.asked and all(_same(getattr(mine, name), getattr(others, name)) for name in names)


class Together(Generic[CommitT]):
    """The questions of all threads to one handle."""

    def __init__(self, most: int = MOST, *, share: float = SHARE) -> None:
        """Answer up to `most` questions together; with 1, one after another."""
        self._most, self._share = most, share
        self._lock = threading.RLock()  # reentrant: a signal handler may ask while it is held
        self._waiting: list[_Waiting[CommitT]] = []
        self._turn: _Waiting[CommitT] | None = None  # the question of the thread that computes, or is about to
        self._crowd, self._took = 1, 0.0  # questions there when the last were answered; seconds that this took
        self._gathered = threading.Event()  # so many are there again

    def ask(self, asked: CommitT, question: Question, ask: AskOf[CommitT]) -> Answers:
        """Answer a question, possibly in one batch with questions of other threads."""
        if not _waits(question) or self._computes():
            return ask(asked, question)
        mine = _Waiting(asked, question)
        try:
            self._wait(mine)
            if self._turn is mine:
                self._answer(mine, ask)
        finally:
            self._leave(mine)
        return ask(asked, question) if mine.answers is None else mine.answers

    def _computes(self) -> bool:
        """Whether this thread has the turn already: the function that it computes with asks a question itself."""
        turn = self._turn
        return turn is not None and turn.thread == threading.get_ident()

    def _wait(self, mine: _Waiting[CommitT]) -> None:
        """Wait until a question is answered, or its turn comes."""
        with self._lock:
            if self._turn is None:
                self._turn = mine
                return
            self._waiting.append(mine)
            if len(self._waiting) + 1 >= self._crowd:
                self._gathered.set()
        mine.turn.wait()

    def _gather(self) -> None:
        """Wait for as many questions as last time, but only briefly: their threads may not ask again."""
        with self._lock:
            self._gathered.clear()
            missing = len(self._waiting) + 1 < min(self._crowd, self._most)
        if missing:
            self._gathered.wait(self._took * self._share)

    def _answer(self, mine: _Waiting[CommitT], ask: AskOf[CommitT]) -> None:
        """Answer a question together with all waiting ones that suit it; if that fails, each is left to its thread."""
        self._gather()
        with self._lock:
            some = [one for one in self._waiting if one.suits(mine)][: self._most - 1]
            self._waiting = [one for one in self._waiting if one not in some]
        began = time.perf_counter()
        try:
            if not some:
                mine.answers = ask(mine.asked, mine.question)
                return
            with suppress(Exception):  # caused by one of them: its thread gets the error when it asks by itself
                answers = ask(mine.asked, _as_one([one.question for one in (mine, *some)]))
                for place, one in enumerate((mine, *some)):
                    one.answers = part_of(answers, place)
        finally:
            with self._lock:
                self._crowd, self._took = 1 + len(some) + len(self._waiting), time.perf_counter() - began
            for one in some:
                one.turn.set()

    def _leave(self, mine: _Waiting[CommitT]) -> None:
        """Pass the turn on to the question that has waited longest."""
        with self._lock:
            if self._turn is mine:
                self._turn = self._waiting.pop(0) if self._waiting else None
                if self._turn is not None:
                    self._turn.turn.set()
            elif mine.answers is None:
                self._waiting = [one for one in self._waiting if one is not mine]  # after an interrupt


def _waits(question: Question) -> bool:
    single = len(question.queries) == 1 and not np.ndim(question.temperature)
    return single and question.asks_all and question.heads is None


def _same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, str | float | int) and bool(one == other))


def _as_one(questions: Sequence[Question]) -> Question:
    rounded = [np.broadcast_to(one.rounded, np.shape(one.queries)) for one in questions]
    return replace(
        questions[0], queries=np.concatenate([one.queries for one in questions]), rounded=np.concatenate(rounded)
    )
