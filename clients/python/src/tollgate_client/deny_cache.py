"""Keys that were refused, until they may pass again."""

from __future__ import annotations

import dataclasses

from .model import Decision, Question


@dataclasses.dataclass(frozen=True)
class _Entry:
    # None after a refund.
    refusal: Decision | None
    # The hits of each descriptor that were refused. Fewer hits may pass earlier.
    hits: tuple[int, ...]
    # When the check was sent, or hits were refunded. The server decided after it, so a local refusal ends in time.
    since: float
    until: float


class DenyCache:
    """Refuses a key until its retry-after is over, at most `longest` seconds. The oldest of more than `keys` go."""

    def __init__(self, keys: int, longest: float) -> None:
        self._keys = keys
        self._longest = longest
        # In the order of their insertion.
        self._entries: dict[tuple, _Entry] = {}

    def find(self, question: Question, now: float) -> Decision | None:
        """The refusal of this question, if the server would refuse it now as well."""
        entry = self._entries.get(key_of(question)) if self._entries else None
        if entry is None or entry.refusal is None or now >= entry.until:
            return None
        if any(hits < refused for hits, refused in zip(_hits(question), entry.hits, strict=True)):
            return None
        return entry.refusal.after(now - entry.since)

    def insert(self, question: Question, decision: Decision, sent: float) -> None:
        """Remembers the server's refusal of a check that was sent at this instant. One without retry-after names no
        instant, so it is not kept."""
        if decision.allowed or decision.retry_after is None:
            return
        entry = self._entries.get(key_of(question))
        # The server may have decided before the refund.
        if entry is not None and entry.refusal is None and sent < entry.since:
            return
        until = sent + min(decision.retry_after, self._longest)
        self._set(question, _Entry(decision, _hits(question), sent, until))

    def refund(self, question: Question, now: float) -> None:
        """Forgets the refusals of checks that were sent before this instant."""
        self._set(question, _Entry(None, (), now, now))

    def _set(self, question: Question, entry: _Entry) -> None:
        if self._keys == 0:
            return
        key = key_of(question)
        # A key that is set again is the newest.
        self._entries.pop(key, None)
        if len(self._entries) >= self._keys:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = entry


def key_of(question: Question) -> tuple:
    """What names the counters of a question."""
    return question.domain, *((each.entries, each.limit) for each in question.descriptors)


def _hits(question: Question) -> tuple[int, ...]:
    return tuple(question.hits if each.hits is None else each.hits for each in question.descriptors)
