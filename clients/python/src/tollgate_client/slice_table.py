"""The state of prepaid slices, without calls and without a clock."""

from __future__ import annotations

import dataclasses

from .model import (
    DAY_SECONDS,
    Decision,
    InvalidRequestError,
    NoAnswerError,
    Request,
    Reservation,
    Source,
    check_range,
)

# The longest pause between attempts to reserve a slice, in seconds.
PAUSE_MAX = 1.0
# A slice that lasts shorter, in seconds, is not worth its calls.
LASTS_MIN = 0.05
# Before the end of a slice is repeated, in seconds.
END_PAUSES = (0.1, 0.4)


@dataclasses.dataclass(frozen=True)
class SliceOptions:
    """Raises `ValueError`."""

    # Of each slice; at most what the limit has left, or there is no slice.
    hits: int = 100
    # Seconds for which a slice may be spent, 1 ms to 24 h.
    ttl: float = 5.0
    # Keys with a slice, at most a million. Checks of further keys ask the server.
    keys_max: int = 100

    def __post_init__(self) -> None:
        check_range("hits", self.hits, 1, 2**64 - 1)
        check_range("ttl", self.ttl, 0.001, DAY_SECONDS)
        check_range("keys_max", self.keys_max, 1, 1_000_000)


@dataclasses.dataclass
class _Slice:
    """Hits that this process may spend."""

    reservation: Reservation
    # Before the server reserved, so the slice ends no later than there.
    begin: float
    lasts: float
    left: int
    # Whether little is left, or a check did not fit.
    is_low: bool = False

    @property
    def until(self) -> float:
        return self.begin + self.lasts

    @property
    def renew_at(self) -> float:
        return self.until - self.lasts / 4


@dataclasses.dataclass(eq=False)
class End:
    """A settlement or a cancellation of a reservation."""

    reservation: Reservation
    # None for a cancellation: the reservation is no slice.
    spent: int | None
    # Hits that stay charged if the end has no answer.
    unspent: int
    # Those without an answer.
    attempts: int = 0
    # None while a call is under way.
    repeat_at: float | None = None


@dataclasses.dataclass
class Actions:
    """What a step of the state begins."""

    # The request to reserve.
    reserve: Request | None = None
    ends: list[End] = dataclasses.field(default_factory=list)
    lost: int = 0


@dataclasses.dataclass
class _Key:
    """The state of one key, which is forgotten when it is idle without a slice."""

    request: Request
    slice: _Slice | None = None
    # When the reservation that is under way was sent.
    reserving_since: float | None = None
    # Nothing is reserved until this instant.
    paused_until: float | None = None
    ends: list[End] = dataclasses.field(default_factory=list)

    def is_idle(self) -> bool:
        return self.reserving_since is None and self.paused_until is None and not self.ends

    def reserve(self, now: float, actions: Actions) -> None:
        self.reserving_since = now
        actions.reserve = self.request

    def end(self, end: End, actions: Actions) -> None:
        self.ends.append(end)
        actions.ends.append(end)


class SliceTable:
    """The slices of all keys."""

    def __init__(self, options: SliceOptions) -> None:
        self._options = options
        self.keys: dict[bytes, _Key] = {}
        self._closed = False

    def serves(self, request: Request) -> bool:
        """Whether slices may decide the request. Other numbers are invalid, which the client says."""
        return (
            not request.request_id
            and isinstance(request.hits, int)
            and 0 <= request.hits <= self._options.hits
            and all(each.hits is None and each.on_expiry is None for each in request.descriptors)
        )

    def check(self, key: bytes, request: Request, now: float) -> tuple[Decision | None, Actions]:
        """The decision of a slice. Without one, the server decides."""
        actions = self.advance(key, now)
        known = self.keys.get(key)
        if known is None:
            if not self._closed and len(self.keys) < self._options.keys_max:
                self.keys[key] = _Key(dataclasses.replace(request, hits=self._options.hits))
                self.keys[key].reserve(now, actions)
            return None, actions
        if (current := known.slice) is None:
            return None, actions
        hits = max(request.hits, 1)
        fits = hits <= current.left
        if fits:
            current.left -= hits
        current.is_low |= not fits or current.left <= self._options.hits // 4
        self._renew(known, now, actions)
        if not fits:
            return None, actions
        decision = current.reservation.decision.after(now - current.begin, Source.PREPAID)
        limits = (dataclasses.replace(each, remaining=each.remaining + current.left) for each in decision.limits)
        return dataclasses.replace(decision, limits=tuple(limits)), actions

    def reserved(self, key: bytes, reservation: Reservation | None, now: float) -> Actions:
        """Takes the answer to a reservation; None if it is invalid."""
        known = self.keys[key]
        actions = Actions()
        begin, known.reserving_since = known.reserving_since, None
        lasts = self._lasts(reservation)
        if reservation is not None and begin is not None and lasts >= LASTS_MIN and not self._closed:
            self._settle(known, actions)
            known.slice = _Slice(reservation, begin, lasts, self._options.hits)
        else:
            wait = PAUSE_MAX
            if reservation is not None:
                wait = min(reservation.decision.retry_after or PAUSE_MAX, PAUSE_MAX)
            known.paused_until = now + wait
            if reservation is not None and reservation.id:
                # Without an answer, it is not known whether they are held.
                is_held = reservation.decision.source is Source.SERVER
                known.end(End(reservation, None, self._options.hits if is_held else 0), actions)
        return self.advance(key, now, actions)

    def ended(self, key: bytes, end: End, error: NoAnswerError | InvalidRequestError | None, now: float) -> Actions:
        """Takes the answer to the end of a slice."""
        actions = Actions()
        if isinstance(error, NoAnswerError) and end.attempts < len(END_PAUSES):
            end.repeat_at = now + END_PAUSES[end.attempts]
            end.attempts += 1
        else:
            self.keys[key].ends.remove(end)
            actions.lost = 0 if error is None else end.unspent
        return self.advance(key, now, actions)

    def close(self, now: float) -> dict[bytes, Actions]:
        """Ends all slices."""
        self._closed = True
        all_actions = {key: Actions() for key in self.keys}
        for key, actions in all_actions.items():
            self._settle(self.keys[key], actions)
            self.advance(key, now, actions)
        return all_actions

    def next_due(self, key: bytes, now: float) -> float | None:
        """The next instant after this one at which something is due."""
        if (known := self.keys.get(key)) is None:
            return None
        instants = [known.paused_until, *(end.repeat_at for end in known.ends)]
        if known.slice is not None:
            instants += [known.slice.renew_at, known.slice.until]
        return min((each for each in instants if each is not None and each > now), default=None)

    def advance(self, key: bytes, now: float, actions: Actions | None = None) -> Actions:
        """Does what is due, and forgets a key of which nothing is left."""
        actions = actions or Actions()
        if (known := self.keys.get(key)) is None:
            return actions
        for end in known.ends:
            if end.repeat_at is not None and now >= end.repeat_at:
                end.repeat_at = None
                actions.ends.append(end)
        if known.paused_until is not None and (self._closed or now >= known.paused_until):
            known.paused_until = None
        if (current := known.slice) is not None:
            is_unused = current.left == self._options.hits
            if now >= current.until or (is_unused and now >= current.renew_at):
                self._settle(known, actions)
            else:
                self._renew(known, now, actions)
        if known.slice is None and known.is_idle():
            del self.keys[key]
        return actions

    def _renew(self, known: _Key, now: float, actions: Actions) -> None:
        current = known.slice
        if current is not None and known.is_idle() and (current.is_low or now >= current.renew_at):
            known.reserve(now, actions)

    def _settle(self, known: _Key, actions: Actions) -> None:
        if (ended := known.slice) is not None:
            known.slice = None
            known.end(End(ended.reservation, self._options.hits - ended.left, ended.left), actions)

    def _lasts(self, reservation: Reservation | None) -> float:
        """Seconds for which a reservation may be spent; 0 if it may not."""
        if reservation is None or not reservation.id:
            return 0.0
        decision = reservation.decision
        # A turn in a queue cannot be spent later.
        if decision.source is not Source.SERVER or decision.delay > 0:
            return 0.0
        # Hits of a window that has ended must not be spent in the next one.
        return min([self._options.ttl, *(limit.reset_after for limit in decision.limits)])
