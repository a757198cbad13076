"""Asks Tollgate whether a request may pass."""

import dataclasses
import enum

import grpc

from envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from envoy.service.ratelimit.v3.rls_pb2_grpc import RateLimitServiceStub

CHANNEL_OPTIONS = [
    # By default gRPC waits up to two minutes before it reconnects.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Detects a peer that disappeared without closing the connection.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
]


class OnError(enum.Enum):
    """What happens to a request if Tollgate gives no answer."""

    # For protection against overload: an outage of the limiter must not be an outage of the service.
    ALLOW = "allow"
    # For limits that protect money, logins or secrets.
    DENY = "deny"


@dataclasses.dataclass(frozen=True)
class Decision:
    """What to do with a request."""

    allowed: bool
    # What is left of the tightest limit; None if no limit applies or there was no answer.
    remaining: int | None = None
    # The time after which a refused request would pass.
    retry_after_seconds: float = 0.0
    # The reason why Tollgate gave no answer, in which case OnError has decided.
    no_answer: grpc.RpcError | None = None


class Limiter:
    """Make one for the whole process: its channel carries the calls of all threads and comes back by itself.

    Where a server forks its workers, make it in each worker, after the fork.
    """

    def __init__(self, to: str, timeout_seconds: float, on_error: OnError):
        # Does not wait for the connection, so a service can start while Tollgate is down.
        self._channel = grpc.insecure_channel(to, options=CHANNEL_OPTIONS)
        self._client = RateLimitServiceStub(self._channel)
        self._timeout_seconds = timeout_seconds
        self._on_error = on_error

    def ask(self, domain: str, entries: list[tuple[str, str]], hits: int = 1) -> Decision:
        """Charges the hits to the descriptor with these entries."""
        pairs = [RateLimitDescriptor.Entry(key=key, value=value) for key, value in entries]
        request = RateLimitRequest(
            domain=domain, descriptors=[RateLimitDescriptor(entries=pairs)], hits_addend=hits
        )
        try:
            # Without a deadline a silent peer would block the request.
            answer = self._client.ShouldRateLimit(request, timeout=self._timeout_seconds)
        except grpc.RpcError as error:
            return Decision(self._on_error is OnError.ALLOW, no_answer=error)
        return _decision_of(answer)

    def close(self) -> None:
        self._channel.close()


def _decision_of(answer: RateLimitResponse) -> Decision:
    limited = [status.limit_remaining for status in answer.statuses if status.HasField("current_limit")]
    remaining = min(limited, default=None)
    if answer.overall_code != RateLimitResponse.OVER_LIMIT:
        return Decision(True, remaining)
    refusing = [status for status in answer.statuses if status.code == RateLimitResponse.OVER_LIMIT]
    waits = [status.duration_until_reset.ToTimedelta().total_seconds() for status in refusing]
    # If several limits refuse, the longest wait applies.
    return Decision(False, remaining, max(waits, default=0.0))
