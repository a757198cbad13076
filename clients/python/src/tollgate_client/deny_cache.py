"""Keys that were refused, until they may pass again."""

from __future__ import annotations

import dataclasses

from .model import Decision, Question


@dataclasses.dataclass(frozen=True)
class _Refusal:
    decision: Decision
    # The hits of each descriptor. Fewer hits may pass earlier.
    hits: tuple[int, ...]
    since: float
    until: float


class DenyCache:
    """Refuses a key until its retry-after is over, at most `longest` seconds. The oldest of more than `keys` go."""

    def __init__(self, keys: int, longest: float) -> None:
        self._keys = keys
        self._longest = longest
        self._refusals: dict[tuple, _Refusal] = {}

    def find(self, question: Question, now: float) -> Decision | None:
        """The refusal of this question, if the server would refuse it now as well."""
        if not self._refusals:
            return None
        key = _key(question)
        refusal = self._refusals.get(key)
        if refusal is None:
            return None
        if now >= refusal.until:
            del self._refusals[key]
            return None
        if any(hits < refused for hits, refused in zip(_hits(question), refusal.hits, strict=True)):
            return None
        return refusal.decision.after(now - refusal.since)

    def insert(self, question: Question, decision: Decision, now: float) -> None:
        """Remembers a refusal that the server sent. One without retry-after names no instant, so it is not kept."""
        if self._keys == 0 or decision.allowed or decision.retry_after is None:
            return
        key = _key(question)
        # A key that is refused again is the newest.
        self._refusals.pop(key, None)
        if len(self._refusals) >= self._keys:
            del self._refusals[next(iter(self._refusals))]
        until = now + min(decision.retry_after, self._longest)
        self._refusals[key] = _Refusal(decision, _hits(question), now, until)

    def remove(self, question: Question) -> None:
        self._refusals.pop(_key(question), None)


def _key(question: Question) -> tuple:
    return question.domain, *((each.entries, each.limit) for each in question.descriptors)


def _hits(question: Question) -> tuple[int, ...]:
    return tuple(question.hits if each.hits is None else each.hits for each in question.descriptors)
