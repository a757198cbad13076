"""Keys that were refused, until they may pass again."""

from __future__ import annotations

import dataclasses

from .model import Decision, Source


@dataclasses.dataclass(frozen=True)
class _Refusal:
    decision: Decision
    # The hits of each descriptor that were refused. Fewer hits may pass earlier.
    hits: tuple[int, ...]
    # When the check was sent. The server decided after it, so a local refusal ends in time.
    sent: float
    until: float


@dataclasses.dataclass
class _Checks:
    """Checks of one key that are under way."""

    count: int = 0
    # The server may have decided those that were sent earlier before the last refund or change of limits.
    refunded: float | None = None


class DenyCache:
    """Refuses a key until its retry-after is over, at most `longest` seconds. The oldest of more than `keys` go."""

    def __init__(self, keys: int, longest: float) -> None:
        self._keys = keys
        self._longest = longest
        # In the order of their insertion.
        self._refusals: dict[bytes, _Refusal] = {}
        self._under_way: dict[bytes, _Checks] = {}

    def find(self, key: bytes, hits: tuple[int, ...], now: float) -> Decision | None:
        """The refusal of this key, if the server would refuse these hits of each descriptor now as well."""
        refusal = self._refusals.get(key)
        if refusal is None or now >= refusal.until:
            return None
        if any(each < refused for each, refused in zip(hits, refusal.hits, strict=True)):
            return None
        return refusal.decision.after(now - refusal.sent, Source.DENY_CACHE)

    def begin(self, key: bytes) -> None:
        """A check of this key is under way, until `end`."""
        self._under_way.setdefault(key, _Checks()).count += 1

    def end(self, key: bytes) -> None:
        checks = self._under_way[key]
        checks.count -= 1
        if checks.count == 0:
            del self._under_way[key]

    def insert(self, key: bytes, hits: tuple[int, ...], decision: Decision, sent: float) -> None:
        """Remembers the server's refusal of a check that was sent at this instant, and is under way. One without
        retry-after names no instant, so it is not kept."""
        if self._keys == 0 or decision.allowed or not decision.retry_after:
            return
        refunded = self._under_way[key].refunded
        if refunded is not None and sent < refunded:
            return
        # A key that is set again is the newest.
        self._refusals.pop(key, None)
        if len(self._refusals) >= self._keys:
            del self._refusals[next(iter(self._refusals))]
        self._refusals[key] = _Refusal(decision, hits, sent, sent + min(decision.retry_after, self._longest))

    def refund(self, key: bytes, now: float) -> None:
        """Forgets the refusals of checks that were sent before this instant."""
        self._refusals.pop(key, None)
        if (checks := self._under_way.get(key)) is not None:
            checks.refunded = now

    def clear(self, now: float) -> None:
        """Forgets all refusals of checks that were sent before this instant."""
        self._refusals.clear()
        for checks in self._under_way.values():
            checks.refunded = now
