"""What HTTP and gRPC callers are told of a decision."""

from __future__ import annotations

import json
import math
from http import HTTPStatus

from .model import Decision, Source

# The time after which a request may pass that is denied because the server gave no answer.
NO_ANSWER_WAIT = 1.0
PROBLEM = "application/problem+json"


def of(decision: Decision) -> list[tuple[str, str]]:
    """The tightest limit of a decision, with names in lower case."""
    if (limit := decision.tightest) is None:
        return []
    fields = [("ratelimit-limit", str(limit.requests_per_unit)), ("ratelimit-remaining", str(limit.remaining))]
    # A request that never passes waits for nothing.
    return fields if decision.never_because else [*fields, ("ratelimit-reset", whole_seconds(limit.reset_after))]


def reason(decision: Decision) -> str:
    """Why a request is denied, in one line."""
    if decision.source is Source.DEFAULT:
        return "the rate limiter gave no answer"
    return decision.never_because or "rate limit exceeded"


def refusal(decision: Decision, accept: str = "") -> tuple[int, list[tuple[str, str]], str]:
    """The status of the response to a denied HTTP request, its headers with names in lower case, and its body: 429, and
    `retry-after` if the same request passes later; 503, and `retry-after` of a second, if the decision is the default
    one. The body says why, as a text, or as a problem (RFC 9457) if the header `accept` of the request has its type."""
    wait = NO_ANSWER_WAIT if decision.source is Source.DEFAULT else decision.retry_after
    status = HTTPStatus.SERVICE_UNAVAILABLE if decision.source is Source.DEFAULT else HTTPStatus.TOO_MANY_REQUESTS
    fields = [("retry-after", whole_seconds(wait))] if wait else []
    content_type, body = "text/plain; charset=utf-8", reason(decision)
    if PROBLEM in accept.lower():
        problem = {"title": status.phrase, "status": status.value, "detail": body}
        content_type, body = PROBLEM, json.dumps(problem, separators=(",", ":"))
    return status.value, [*of(decision), *fields, ("content-type", content_type)], body


def whole_seconds(seconds: float) -> str:
    """Rounded up: a caller that waits for them is not refused for waiting too short."""
    return str(math.ceil(seconds))
