"""What HTTP and gRPC callers are told of a decision."""

from __future__ import annotations

import math

from .model import Decision


def of(decision: Decision) -> list[tuple[str, str]]:
    """The tightest limit of a decision, with names in lower case."""
    if (limit := decision.tightest) is None:
        return []
    return [
        ("ratelimit-limit", str(limit.requests_per_unit)),
        ("ratelimit-remaining", str(limit.remaining)),
        ("ratelimit-reset", whole_seconds(limit.reset_after)),
    ]


def whole_seconds(seconds: float) -> str:
    """Rounded up: a caller that waits for them is not refused for waiting too short."""
    return str(math.ceil(seconds))
