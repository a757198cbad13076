"""What a client counts."""

from __future__ import annotations

import dataclasses
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
    INVALID = "invalid"


class Metrics:
    """Is told of checks and calls. A subclass overrides what it counts; its methods must neither block nor raise."""

    def check(self, outcome: Outcome, seconds: float) -> None:
        """A check ended, after this time."""

    def batch(self, size: int) -> None:
        """A call with this number of checks is sent."""

    def lost_slice(self, hits: int) -> None:
        """A prepaid slice stays charged as a whole, with this number of hits that were not spent: no settlement had an
        answer."""


@dataclasses.dataclass
class Counts(Metrics):
    """Counts everything since the start of the client."""

    outcomes: dict[Outcome, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    # The sum of the times of all checks, in seconds.
    check_seconds: float = 0.0
    batches: int = 0
    batched_checks: int = 0
    largest_batch: int = 0
    # Hits of prepaid slices that were not spent and stay charged.
    lost_hits: int = 0

    @property
    def checks(self) -> int:
        return sum(self.outcomes.values())

    def check(self, outcome: Outcome, seconds: float) -> None:
        self.outcomes[outcome] += 1
        self.check_seconds += seconds

    def batch(self, size: int) -> None:
        self.batches += 1
        self.batched_checks += size
        self.largest_batch = max(self.largest_batch, size)

    def lost_slice(self, hits: int) -> None:
        self.lost_hits += hits
