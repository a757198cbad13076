"""Sends concurrent checks in calls of several, without a timer."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import time
from collections.abc import Awaitable, Callable, Sequence

import grpc

from .model import InvalidRequestError, NoAnswerError
from .v1 import tollgate_pb2 as v1
from .wire import answers_to

# The server refuses messages above 4 MiB, and a large request must not take others with it.
BATCH_BYTES_MAX = 1 << 20
NO_ANSWER_IN_TIME = "no answer in time"

# Sends requests until an instant of the loop's clock.
Call = Callable[[list[v1.Request], float], Awaitable[Sequence[v1.Answer]]]


class QueueFullError(NoAnswerError):
    """As many checks wait as the queue holds."""


@dataclasses.dataclass(frozen=True)
class Reply:
    answer: v1.Answer
    # When the check was sent, by `time.monotonic`.
    sent: float


@dataclasses.dataclass(frozen=True, eq=False)
class _Check:
    request: v1.Request
    reply: asyncio.Future[Reply]
    # By the clock of the loop. Later for a later check, since all have the same timeout.
    deadline: float


class Batcher:
    """Collects checks while `calls_max` calls are under way; the next call takes up to `batch_max` of them."""

    def __init__(self, call: Call, *, timeout: float, calls_max: int, batch_max: int, queue_max: int) -> None:
        self._call = call
        self._timeout = timeout
        self._calls_max = calls_max
        self._batch_max = batch_max
        self._queue_max = queue_max
        # Checks that wait. Invariant: empty unless `calls_max` calls are under way.
        self.queue: collections.OrderedDict[_Check, None] = collections.OrderedDict()
        self._calls: set[asyncio.Task[None]] = set()

    async def ask(self, request: v1.Request) -> Reply:
        """The reply, or `NoAnswerError` after the timeout at the latest."""
        loop = asyncio.get_running_loop()
        check = _Check(request, loop.create_future(), loop.time() + self._timeout)
        if len(self._calls) < self._calls_max:
            self._calls.add(loop.create_task(self._run([check])))
        elif len(self.queue) < self._queue_max:
            self.queue[check] = None
        else:
            raise QueueFullError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{self._queue_max} checks wait already")
        try:
            async with asyncio.timeout_at(check.deadline):
                return await check.reply
        except TimeoutError:
            raise NoAnswerError(grpc.StatusCode.DEADLINE_EXCEEDED, NO_ANSWER_IN_TIME) from None
        finally:
            # If its caller has gone, or its time is over.
            self.queue.pop(check, None)

    async def _run(self, batch: list[_Check]) -> None:
        try:
            while batch:
                await self._send(batch)
                batch = self._next_batch()
        finally:
            self._calls.discard(asyncio.current_task())

    def _next_batch(self) -> list[_Check]:
        batch: list[_Check] = []
        size = 0
        while self.queue and len(batch) < self._batch_max:
            check = next(iter(self.queue))
            size += check.request.ByteSize()
            if batch and size > BATCH_BYTES_MAX:
                break
            del self.queue[check]
            batch.append(check)
        return batch

    async def _send(self, batch: list[_Check]) -> None:
        batch = [check for check in batch if not check.reply.done()]
        if not batch:
            return
        sent = time.monotonic()
        try:
            requests = [check.request for check in batch]
            answers = answers_to(len(batch), await self._call(requests, batch[-1].deadline))
        except InvalidRequestError as error:
            # The call as a whole is above a bound of the server, and nothing was charged.
            if len(batch) == 1:
                _fail(batch, error)
                return
            half = len(batch) // 2
            await self._send(batch[:half])
            await self._send(batch[half:])
        except Exception as error:  # noqa: BLE001, each check gets it
            _fail(batch, error)
        else:
            for check, answer in zip(batch, answers, strict=True):
                if not check.reply.done():
                    check.reply.set_result(Reply(answer, sent))


def _fail(batch: list[_Check], error: Exception) -> None:
    for check in batch:
        if not check.reply.done():
            check.reply.set_exception(error)
