"""Callers that go away before they have the answer: a call that is refused leaves no charge."""

import asyncio
import contextlib
import json
import random
import time

import pytest

from cluster import LONG_FORWARD_BUDGET, LONG_TIMEOUT
from processes import eventually
from rls import Callers, descriptor, rate_limit_request

pytestmark = pytest.mark.extended

# Long enough for a caller to go away between a charge at one owner and the answer of the other.
LINK_DELAY = 0.1
PAIRS, ANSWERED_PAIRS = (
    [(("member", f"{name}-{number}"), ("group", f"{name}-{number}")) for number in range(40)]
    for name in ("name", "answered")
)
MEMBER_LIMIT, GROUP_LIMIT = 3, 10
CALLS_OF_A_PAIR = 8


async def reset_call(callers, replica, pair, seconds):
    """Sends a call over a shared connection, and resets it."""
    request = rate_limit_request(*map(descriptor, pair))
    call = asyncio.ensure_future(callers.call_async(replica.grpc, request, LONG_TIMEOUT))
    await asyncio.wait([call], timeout=seconds)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


async def close_connection(_, replica, pair, seconds):
    """Sends a call over its own connection, and closes the connection."""
    caller = Callers.on_this_loop()
    request = rate_limit_request(*map(descriptor, pair))
    call = asyncio.ensure_future(caller.call_async(replica.grpc, request, LONG_TIMEOUT))
    await asyncio.wait([call], timeout=seconds)
    await caller.close()
    await asyncio.gather(call, return_exceptions=True)


async def close_json_connection(_, replica, pair, seconds):
    """Sends a call as JSON over its own connection, and closes the connection."""
    entries = [{"entries": [{"key": key, "value": value}]} for key, value in pair]
    body = json.dumps({"domain": "edge", "descriptors": entries})
    host, port = replica.http.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"POST /json HTTP/1.1\r\nhost: {replica.http}\r\ncontent-type: application/json\r\n".encode())
    writer.write(f"content-length: {len(body)}\r\n\r\n{body}".encode())
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(reader.read(1), seconds)
    writer.close()


@pytest.mark.parametrize("go_away", [reset_call, close_connection, close_json_connection])
def test_caller_gone_before_take_back_leaves_no_charge(start_cluster, callers, proxies, go_away):
    # A call over links as slow as these takes most of the usual budget, and what is tested is the end of the call.
    cluster = start_cluster(3, proxies=proxies, flags=LONG_FORWARD_BUDGET)
    asked = cluster.replicas[0]
    proxies.slow(cluster.replicas[2].name, LINK_DELAY)
    rng = random.Random(4)

    async def call_all(pairs, patience):
        """Calls that go away after the seconds that `patience` returns. Returns how long all of them took."""
        started = time.monotonic()
        # The members of a pair race: all of them peek, and three of eight charges pass.
        await asyncio.gather(*(go_away(callers, asked, pair, patience()) for pair in pairs * CALLS_OF_A_PAIR))
        return time.monotonic() - started

    # What a call takes on this machine now. Of those that go away within this time, some are decided.
    usual = callers.run(call_all(ANSWERED_PAIRS, lambda: LONG_TIMEOUT))
    callers.run(call_all(PAIRS, lambda: rng.uniform(0, usual)))
    proxies.heal()

    def charged(key, limit):
        [left] = callers.call(asked.grpc, descriptor(key, hits=0)).remaining
        return limit - left

    for member, group in PAIRS:
        # A call that passed has charged both, any other call none.
        eventually(
            f"{group} is charged as often as {member}",
            lambda member=member, group=group: charged(group, GROUP_LIMIT) == charged(member, MEMBER_LIMIT),
        )
    assert any(charged(member, MEMBER_LIMIT) for member, _ in PAIRS), "some calls were decided"
