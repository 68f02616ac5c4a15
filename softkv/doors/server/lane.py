"""The queue of questions of many clients to one store: those that wait while a lookup runs are asked in one call.

Only questions with the same options are joined; sets of options take turns in the order in which they came. Clients
that were just answered mostly ask again, so the next call waits for as many questions as there were, but never longer
than a share of the time that the last call took. A single client never waits.

Does not know what a question is: `ask` gets a list of them.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from softkv.asking.together import SHARE
from softkv.errors import Busy, DeadlinePassed

MOST = 64  # questions in a call
ROOM = 1024  # questions that wait
PATIENCE = 0.05  # seconds between looks whether a client has left; a look takes a tenth of the time of a request
LATE = (
    "the answer did not come in time, and nothing waits for it any more. Ask for less, or give Softkv-Deadline. "
    "A write that had begun is carried out; sent again with its batch, it tells."
)

Ask: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]  # as many answers as questions, in their order


class Waiting(NamedTuple):
    """A question in the queue."""

    question: Any
    answer: "asyncio.Future[Any]"
    gone: Callable[[], Awaitable[bool]]  # whether whoever asked has hung up
    since: float


async def in_time(answer: "asyncio.Future[Any]", seconds: float) -> Any:
    """The result of a future, or DeadlinePassed; it is cancelled then, so that work that has not begun never does."""
    loop = asyncio.get_running_loop()
    timer = loop.call_later(seconds, answer.cancel)
    try:
        return await answer
    except asyncio.CancelledError:
        if loop.time() >= timer.when():
            raise DeadlinePassed(LATE) from None
        raise
    finally:
        timer.cancel()
        answer.cancel()


class Lane:
    """The queue of one store."""

    def __init__(self, executor: Executor, *, most: int = MOST, room: int = ROOM, patience: float = PATIENCE) -> None:
        """Ask in a thread of the executor; `patience` is how long to wait before looking whether a client is there."""
        self._executor, self._most, self._room, self._patience = executor, most, room, patience
        self._sets: OrderedDict[Hashable, tuple[Ask, deque[Waiting]]] = OrderedDict()
        self._waiting = 0
        self._task: asyncio.Task[None] | None = None
        self._crowd, self._until = 1, 0.0  # questions there when the last were answered; how long to wait for as many
        self._gathered = asyncio.Event()  # so many are there again

    def __len__(self) -> int:
        return self._waiting

    async def ask(
        self, options: Hashable, ask: Ask, question: Any, seconds: float, gone: Callable[[], Awaitable[bool]]
    ) -> Any:
        """The answer to a question, possibly asked together with others of the same options."""
        if self._waiting >= self._room:
            raise Busy(f"{self._waiting:,} questions wait for this store, and no more are taken. Ask again soon.", 1.0)
        loop = asyncio.get_running_loop()
        mine = Waiting(question, loop.create_future(), gone, loop.time())
        self._sets.setdefault(options, (ask, deque()))[1].append(mine)
        self._waiting += 1
        if self._waiting >= self._crowd:
            self._gathered.set()
        if self._task is None:
            self._task = loop.create_task(self._work())
        return await in_time(mine.answer, seconds)

    async def _work(self) -> None:
        """Ask until no question waits."""
        loop = asyncio.get_running_loop()
        try:
            while self._sets:
                await self._gather()
                ask, turn = self._next()
                for one in turn:
                    if loop.time() > one.since + self._patience and await one.gone():
                        _tell(one.answer, DeadlinePassed(LATE))
                some = [one for one in turn if not one.answer.done()]
                if not some:
                    continue
                began = loop.time()
                try:
                    answers = await loop.run_in_executor(self._executor, _answers, ask, [one.question for one in some])
                except Exception as error:  # the threads have been shut down
                    answers = [error] * len(some)
                self._crowd, ended = min(len(some) + self._waiting, self._most), loop.time()
                self._until = ended + (ended - began) * SHARE
                for one, answer in zip(some, answers, strict=True):
                    _tell(one.answer, answer)
        finally:
            self._task = None

    async def _gather(self) -> None:
        """Wait for as many questions as last time, but only briefly: whoever sent them may not ask again."""
        self._gathered.clear()
        left = self._until - asyncio.get_running_loop().time()
        if left > 0 and self._waiting < self._crowd:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._gathered.wait(), left)

    def _next(self) -> tuple[Ask, list[Waiting]]:
        """The set of options whose turn it is, and the first of those who wait for it."""
        options, (ask, waiting) = self._sets.popitem(last=False)
        turn = [waiting.popleft() for _ in range(min(self._most, len(waiting)))]
        self._waiting -= len(turn)
        if waiting:
            self._sets[options] = ask, waiting
        return ask, turn


def _answers(ask: Ask, questions: Sequence[Any]) -> list[Any]:
    """The answer to each question, or the error in its place: halves are asked again until it stands alone."""
    try:
        return list(ask(questions))
    except Exception as error:
        if len(questions) == 1:
            return [error]
    half = len(questions) // 2
    return _answers(ask, questions[:half]) + _answers(ask, questions[half:])


def _tell(future: "asyncio.Future[Any]", answer: Any) -> None:
    if future.done():
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)
