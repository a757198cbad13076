"""What HTTP and gRPC callers are told of a decision."""

from __future__ import annotations

import math

from .model import Decision


def of(decision: Decision) -> list[tuple[str, str]]:
    """The headers of a decision, with names in lower case."""
    headers = []
    if (limit := decision.tightest) is not None:
        headers += [
            ("ratelimit-limit", str(limit.requests_per_unit)),
            ("ratelimit-remaining", str(limit.remaining)),
            ("ratelimit-reset", str(_whole_seconds(limit.reset_after))),
        ]
    if not decision.allowed and decision.retry_after is not None:
        headers.append(("retry-after", str(_whole_seconds(decision.retry_after))))
    return headers


def _whole_seconds(seconds: float) -> int:
    """Rounded up, at least 1: a caller that waits for them is not refused for waiting too short."""
    return max(1, math.ceil(seconds))
