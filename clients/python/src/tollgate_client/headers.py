"""What HTTP and gRPC callers are told of a decision."""

from __future__ import annotations

import math

from .model import Decision, Source

# The time after which a request may pass that is denied because the server gave no answer.
NO_ANSWER_WAIT = 1.0


def of(decision: Decision) -> list[tuple[str, str]]:
    """The tightest limit of a decision, with names in lower case."""
    if (limit := decision.tightest) is None:
        return []
    fields = [("ratelimit-limit", str(limit.requests_per_unit)), ("ratelimit-remaining", str(limit.remaining))]
    # A request that never passes waits for nothing.
    return fields if decision.never_because else [*fields, ("ratelimit-reset", whole_seconds(limit.reset_after))]


def refusal(decision: Decision) -> tuple[int, list[tuple[str, str]]]:
    """The status of the response to a denied HTTP request, and its headers, with names in lower case: 429, and
    `retry-after` if the same request passes later, or the type of the body `never_because` if it never does; 503, and
    `retry-after` of a second, if the decision is the default one."""
    status, wait = (503, NO_ANSWER_WAIT) if decision.source is Source.DEFAULT else (429, decision.retry_after)
    fields = [("retry-after", whole_seconds(wait))] if wait else []
    if decision.never_because:
        fields.append(("content-type", "text/plain; charset=utf-8"))
    return status, of(decision) + fields


def whole_seconds(seconds: float) -> str:
    """Rounded up: a caller that waits for them is not refused for waiting too short."""
    return str(math.ceil(seconds))
