"""Allows requests of hot keys without a call for each."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from typing import Self

from .client import Client
from .metrics import Outcome
from .model import Decision, InvalidRequestError, NoAnswerError, OnExpiry, Request, Terms
from .slice_table import Actions, End, SliceOptions, SliceTable

NOTHING = Actions()


class PrepaidSlices:
    """Reserves a part of the limit of a key and spends it here. No more passes than the limit, because the whole part
    is held, and stays charged if this process ends without `close`.

    Without a slice, a check asks the server as `Client.check` does. Hits count at the time at which their slice was
    reserved; a slice never outlasts the window of its limit. Other clients are refused while a slice holds the last
    hits. Close it before the client.
    """

    def __init__(self, client: Client, options: SliceOptions = SliceOptions()) -> None:
        self._client = client
        self._terms = Terms(options.ttl, OnExpiry.CHARGE)
        self._table = SliceTable(options)
        # Wake a key when something is due.
        self._timers: dict[bytes, asyncio.TimerHandle] = {}
        self._calls: set[asyncio.Task[None]] = set()
        # Set when the table may have forgotten a key.
        self._forgotten = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def check(self, request: Request) -> Decision:
        """Charges the hits, and decides whether the request may pass. Use it for keys that many requests have. A
        request with more hits than a slice, with a descriptor that has hits or `on_expiry` of its own, or with a
        `request_id` asks the server. Raises `InvalidRequestError`."""
        begin = time.monotonic()
        if self._table.serves(request):
            key = request.key()
            decision, actions = self._table.check(key, request, begin)
            if actions != NOTHING:
                self._begin(key, actions, begin)
            if decision is not None:
                self._client.metrics.checked(Outcome.PREPAID, time.monotonic() - begin)
                return decision
        return await self._client.check(request)

    async def close(self) -> None:
        """Settles all slices, which takes at most four timeouts of the client and 0.5 s. Checks from then on ask the
        server."""
        now = time.monotonic()
        for key, actions in self._table.close(now).items():
            self._begin(key, actions, now)
        while self._table.keys:
            self._forgotten.clear()
            await self._forgotten.wait()

    def _begin(self, key: bytes, actions: Actions, now: float) -> None:
        """Begins the calls that are due at this instant, and sets the timer of the key."""
        if actions.reserve is not None:
            self._start(self._reserve(key, actions.reserve))
        for end in actions.ends:
            self._start(self._end(key, end))
        if actions.lost > 0:
            self._client.metrics.lost(actions.lost)
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()
        if (due := self._table.next_due(key, now)) is not None:
            self._timers[key] = asyncio.get_running_loop().call_later(due - now, self._wake, key)
        self._forgotten.set()

    def _wake(self, key: bytes) -> None:
        now = time.monotonic()
        self._begin(key, self._table.advance(key, now), now)

    def _start(self, call: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _reserve(self, key: bytes, request: Request) -> None:
        reservation = None
        with contextlib.suppress(InvalidRequestError):
            reservation = await self._client.reserve(request, self._terms)
        now = time.monotonic()
        self._begin(key, self._table.reserved(key, reservation, now), now)

    async def _end(self, key: bytes, end: End) -> None:
        error = None
        try:
            if end.spent is None:
                await self._client.cancel(end.reservation)
            else:
                await self._client.settle(end.reservation, end.spent)
        except (NoAnswerError, InvalidRequestError) as failure:
            error = failure
        now = time.monotonic()
        self._begin(key, self._table.ended(key, end, error, now), now)
