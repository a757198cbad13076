"""Asks Tollgate over Envoy's protocol: envoy_client.py HOST:PORT DOMAIN KEY=VALUE...

Prints one line. Exits with 0 if the request is allowed, 2 if it is denied, and 64 if the arguments are invalid.
"""

import math
import sys

import grpc

from envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from envoy.service.ratelimit.v3.rls_pb2_grpc import RateLimitServiceStub

# Also sent to Tollgate: a `leaky_queue` refuses a request whose turn would come later.
TIMEOUT_SECONDS = 0.25
CHANNEL_OPTIONS = [
    # By default gRPC waits up to two minutes before it reconnects.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Detects a peer that disappeared without closing the connection.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
]


def ask(client, domain, entries):
    """Charges one hit to the descriptor with these entries. Returns whether the request is allowed, and text."""
    pairs = [RateLimitDescriptor.Entry(key=key, value=value) for key, value in entries]
    request = RateLimitRequest(domain=domain, descriptors=[RateLimitDescriptor(entries=pairs)])
    try:
        answer = client.ShouldRateLimit(request, timeout=TIMEOUT_SECONDS)
    except grpc.RpcError as error:
        # An outage of the limiter is none of the service. For money, logins or secrets, return False.
        return True, f"no_answer={error.code().name}"
    limits = [status.limit_remaining for status in answer.statuses if status.HasField("current_limit")]
    remaining = f"remaining={min(limits, default='unlimited')}"
    if answer.overall_code != RateLimitResponse.OVER_LIMIT:
        return True, remaining
    refusing = [status for status in answer.statuses if status.code == RateLimitResponse.OVER_LIMIT]
    waits = [status.duration_until_reset.ToTimedelta().total_seconds() for status in refusing]
    # If several limits refuse, the longest wait applies. Rounded up, so that a retry is not too early.
    return False, f"{remaining} retry_after={math.ceil(max(waits, default=0))}"


def main(arguments):
    if len(arguments) < 3 or not all("=" in pair for pair in arguments[2:]):
        print(__doc__, file=sys.stderr)
        sys.exit(64)
    to, domain, *pairs = arguments
    # A service makes one channel for the whole process: it carries all calls and reconnects by itself.
    with grpc.insecure_channel(to, options=CHANNEL_OPTIONS) as channel:
        allowed, text = ask(RateLimitServiceStub(channel), domain, [pair.split("=", 1) for pair in pairs])
    print("allowed" if allowed else "denied", text)
    sys.exit(0 if allowed else 2)


if __name__ == "__main__":
    main(sys.argv[1:])
