"""Allows requests of hot keys without a call for each."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Coroutine, Iterable

from . import wire
from .client import Client
from .metrics import Outcome
from .model import Decision, Descriptor, InvalidRequest, NoAnswer, OnExpiry, Question, Reservation, Source

# After a refused reservation, in seconds. Until the next one, checks ask the server.
PAUSE = 1.0
# A slice that lasts shorter, in seconds, is not worth its calls.
LASTS_MIN = 0.05
# Before each attempt to settle a slice, in seconds.
SETTLE_WAITS = (0.0, 0.1, 0.4)


@dataclasses.dataclass
class _Slice:
    """Hits that this process may spend."""

    reservation: Reservation
    # The reservation was sent at this instant, so its times on the server end after theirs from here or later.
    sent: float
    # Seconds from `sent` for which the hits may be spent.
    lasts: float
    spent: int = 0


@dataclasses.dataclass
class _Slot:
    """What is known of one key. It is removed when it has no slice and is not renewing."""

    slice: _Slice | None = None
    # A reservation is on its way, or the pause goes on after one that was refused, or lasted too short a time.
    renewing: bool = False
    # The end of the slice.
    expiry: asyncio.TimerHandle | None = None
    pause: asyncio.TimerHandle | None = None


class PrepaidSlices:
    """Reserves a part of the limit of a key and spends it here. No more passes than the limit, because the whole part
    is held, and stays charged if this process ends without `close`.

    A slice is renewed when half of it or of its time has gone, and is settled at the hits that were spent when it is
    replaced, when it ends, and on `close`. Without a slice, a check asks the server as `Client.check` does. Hits count
    at the time at which their slice was reserved; a slice never outlasts the window of its limit. Other clients are
    refused while a slice holds the last hits.
    """

    def __init__(self, client: Client, *, hits: int, ttl: float, keys_max: int) -> None:
        """Each slice has so many `hits`, at most what the limit has left, or there is no slice. It may be spent for
        at most `ttl` seconds, 1 ms to 24 h. A slice that lasts less than 50 ms is given back unused. `keys_max` keys
        have slices. Close it before the client.
        """
        if hits < 1 or keys_max < 1:
            raise ValueError("hits and keys_max must be at least 1")
        if not 0.001 <= ttl <= 86_400:
            raise ValueError("ttl must be 1 ms to 24 h")
        self._client = client
        self._hits = hits
        self._ttl = ttl
        self._keys_max = keys_max
        self._slots: dict[bytes, _Slot] = {}
        # Reservations and settlements without an answer. Each call ends by the timeout of the client.
        self._under_way: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> PrepaidSlices:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def check(
        self, domain: str, descriptors: Iterable[Descriptor], hits: int = 1, *, request_id: str | None = None
    ) -> Decision:
        """Charges the hits, and decides whether the request may pass. Use it for keys that many requests have. A
        request with more hits than a slice, with a descriptor that has hits of its own, or with a `request_id` asks
        the server. Raises `InvalidRequest`."""
        return await self.ask(Question(domain, descriptors, hits, request_id=request_id))

    async def ask(self, question: Question) -> Decision:
        """`check` of a question as one value."""
        begin = time.monotonic()
        decision = self._spend(question, begin)
        if decision is None:
            return await self._client.ask(question)
        self._client.metrics.check(Outcome.PREPAID, time.monotonic() - begin)
        return decision

    async def close(self) -> None:
        """Settles all slices, which takes at most four timeouts of the client and 0.5 s. Checks from then on ask the
        server."""
        self._closed = True
        for slot in self._slots.values():
            self._end(slot)
            if slot.pause is not None:
                slot.pause.cancel()
        self._slots.clear()
        # A reservation that is answered now is settled too.
        while self._under_way:
            await asyncio.wait(self._under_way)

    def _spend(self, question: Question, now: float) -> Decision | None:
        if self._closed or any(each.hits is not None for each in question.descriptors):
            return None
        try:
            request = wire.request_of(question)
        except InvalidRequest:
            # The client says and counts it.
            return None
        if request.hits > self._hits or request.request_id:
            return None
        key = wire.key_of(request)
        slot = self._slots.get(key)
        if slot is None:
            if len(self._slots) < self._keys_max:
                self._slots[key] = slot = _Slot()
                self._renew(key, slot, question)
            return None
        decision = None
        if (spent := slot.slice) is not None:
            decision = self._spend_slice(spent, request.hits, now)
            if not slot.renewing and self._is_running_out(spent, now):
                self._renew(key, slot, question)
        return decision

    def _spend_slice(self, source: _Slice, hits: int, now: float) -> Decision | None:
        elapsed = now - source.sent
        left = self._hits - source.spent
        if elapsed >= source.lasts or hits > left:
            return None
        source.spent += hits
        decision = source.reservation.decision
        limits = (limit.after(elapsed) for limit in decision.limits)
        return dataclasses.replace(
            decision,
            source=Source.PREPAID,
            limits=tuple(dataclasses.replace(each, remaining=each.remaining + left - hits) for each in limits),
        )

    def _is_running_out(self, current: _Slice, now: float) -> bool:
        return current.spent >= self._hits - self._hits // 2 or now - current.sent >= current.lasts / 2

    def _renew(self, key: bytes, slot: _Slot, question: Question) -> None:
        slot.renewing = True
        self._begin(self._reserve(key, slot, question))

    async def _reserve(self, key: bytes, slot: _Slot, question: Question) -> None:
        sent = time.monotonic()
        try:
            reservation = await self._client.reserve(
                question.domain, question.descriptors, self._hits, ttl=self._ttl, on_expiry=OnExpiry.CHARGE
            )
        except (InvalidRequest, NoAnswer):
            # Invalid to the server, or the client is closed: a check that asks says so.
            self._pause(key, slot)
            return
        # Hits of a window that has ended must not be spent in the next one.
        lasts = min((limit.reset_after for limit in reservation.decision.limits), default=self._ttl)
        next_slice = _Slice(reservation, sent, min(lasts, self._ttl))
        if self._closed or not _is_held(reservation) or next_slice.lasts < LASTS_MIN:
            self._settle(next_slice)
            self._pause(key, slot)
            return
        self._end(slot)
        slot.renewing = False
        slot.slice = next_slice
        rest = sent + next_slice.lasts - time.monotonic()
        slot.expiry = asyncio.get_running_loop().call_later(rest, self._expire, key, slot)

    def _pause(self, key: bytes, slot: _Slot) -> None:
        if not self._closed:
            slot.pause = asyncio.get_running_loop().call_later(PAUSE, self._resume, key, slot)

    def _resume(self, key: bytes, slot: _Slot) -> None:
        slot.renewing = False
        self._remove_if_unused(key, slot)

    def _expire(self, key: bytes, slot: _Slot) -> None:
        self._end(slot)
        self._remove_if_unused(key, slot)

    def _remove_if_unused(self, key: bytes, slot: _Slot) -> None:
        if slot.slice is None and not slot.renewing:
            del self._slots[key]

    def _end(self, slot: _Slot) -> None:
        """Settles the slice of a slot, if there is one."""
        if slot.expiry is not None:
            slot.expiry.cancel()
        if slot.slice is not None:
            self._settle(slot.slice)
        slot.slice = None

    def _settle(self, ended: _Slice) -> None:
        self._begin(self._settled(ended))

    async def _settled(self, ended: _Slice) -> None:
        for wait in SETTLE_WAITS:
            await asyncio.sleep(wait)
            with contextlib.suppress(NoAnswer):
                await self._client.settle(ended.reservation, ended.spent)
                return
        left = self._hits - ended.spent
        # Without an answer to its reservation, it is not known whether the slice was held.
        if left > 0 and ended.reservation.decision.source is Source.SERVER:
            self._client.metrics.lost_slice(left)

    def _begin(self, call: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(call)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)


def _is_held(reservation: Reservation) -> bool:
    # A turn in a queue cannot be spent later.
    decision = reservation.decision
    return decision.source is Source.SERVER and decision.delay == 0 and bool(reservation.id)
