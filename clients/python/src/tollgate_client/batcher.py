"""Sends concurrent requests in calls of several, without a timer."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable

from .model import InvalidRequest, NoAnswer
from .v1 import tollgate_pb2 as v1

# The server refuses messages above 4 MiB, and a large request must not take others with it.
BATCH_BYTES_MAX = 1 << 20

# Sends requests until an instant of the loop's clock.
Call = Callable[[list[v1.Request], float], Awaitable[list[v1.Answer]]]


class QueueFull(NoAnswer):
    """As many requests wait as the queue holds."""


@dataclasses.dataclass(frozen=True)
class _Waiting:
    request: v1.Request
    answer: asyncio.Future[v1.Answer]
    deadline: float


class Batcher:
    """Collects requests while `calls_max` calls are under way; the next call takes up to `batch_max` of them.

    A sender is a task that calls until the queue is empty. It takes its requests when it first runs, after the tasks
    that were ready before it, so requests of one turn of the loop share a call.
    """

    def __init__(self, call: Call, *, timeout: float, calls_max: int, batch_max: int, queue_max: int) -> None:
        self._call = call
        self._timeout = timeout
        self._calls_max = calls_max
        self._batch_max = batch_max
        self._queue_max = queue_max
        # Invariant: deadlines never decrease, since all requests have the same timeout.
        self._queue: collections.deque[_Waiting] = collections.deque()
        self._senders: set[asyncio.Task[None]] = set()

    async def ask(self, request: v1.Request) -> v1.Answer:
        """The answer, or `NoAnswer` after the timeout at the latest."""
        if len(self._queue) >= self._queue_max:
            raise QueueFull(f"{self._queue_max} requests wait already")
        loop = asyncio.get_running_loop()
        waiting = _Waiting(request, loop.create_future(), loop.time() + self._timeout)
        timer = loop.call_at(waiting.deadline, _fail, waiting, NoAnswer(f"no answer within {self._timeout} s"))
        self._queue.append(waiting)
        if len(self._senders) < self._calls_max:
            self._senders.add(loop.create_task(self._send_until_empty()))
        try:
            return await waiting.answer
        finally:
            timer.cancel()

    async def close(self) -> None:
        """Ends the calls under way. Requests without an answer fail."""
        senders = list(self._senders)
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        while self._queue:
            _fail(self._queue.popleft(), NoAnswer("the client was closed"))

    async def _send_until_empty(self) -> None:
        try:
            while batch := self._next_batch():
                try:
                    await self._send(batch)
                finally:
                    # These have no answer only if the client closes.
                    _fail_all(batch, NoAnswer("the client was closed"))
        finally:
            self._senders.discard(asyncio.current_task())

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._queue and len(batch) < self._batch_max:
            waiting = self._queue[0]
            if not waiting.answer.done():
                size += waiting.request.ByteSize()
                if batch and size > BATCH_BYTES_MAX:
                    break
                batch.append(waiting)
            # Else its caller has gone or its time is over.
            self._queue.popleft()
        return batch

    async def _send(self, batch: list[_Waiting]) -> None:
        try:
            answers = await self._call([waiting.request for waiting in batch], batch[-1].deadline)
            if len(answers) != len(batch):
                raise NoAnswer(f"{len(answers)} answers to {len(batch)} requests")
        except InvalidRequest as error:
            # The call as a whole is above a bound of the server, and nothing was charged.
            if len(batch) == 1:
                _fail(batch[0], error)
                return
            half = len(batch) // 2
            await self._send(batch[:half])
            await self._send(batch[half:])
            return
        except Exception as error:
            _fail_all(batch, error)
            return
        for waiting, answer in zip(batch, answers, strict=True):
            with contextlib.suppress(asyncio.InvalidStateError):
                waiting.answer.set_result(answer)


def _fail_all(batch: list[_Waiting], error: Exception) -> None:
    for waiting in batch:
        _fail(waiting, error)


def _fail(waiting: _Waiting, error: Exception) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)
