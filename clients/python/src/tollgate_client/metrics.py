"""What a client counts."""

from __future__ import annotations

import enum


class Outcome(enum.Enum):
    """How a check ended."""

    ALLOWED = "allowed"
    DENIED = "denied"
    DENIED_LOCALLY = "denied_locally"
    # Allowed from a prepaid slice.
    PREPAID = "prepaid"
    # The server did not answer, or not in time; the decision is the default one.
    NO_ANSWER = "no_answer"
    # Too many checks waited; the decision is the default one.
    QUEUE_FULL = "queue_full"
    # The request was invalid, or its caller was cancelled.
    FAILED = "failed"


class Metrics:
    """Is told of checks and calls. A subclass overrides what it counts; its methods must neither block nor raise."""

    def checked(self, outcome: Outcome, latency: float) -> None:
        """A check ended, after so many seconds."""

    def sent(self, batch: int) -> None:
        """A call with this number of checks is sent."""

    def lost(self, hits: int) -> None:
        """Hits of a prepaid slice that were not spent stay charged, because its settlement had no answer."""
