"""How checks share calls."""

import asyncio

from server import eventually
from tollgate_client import Descriptor, Outcome, Source

MANY = [Descriptor([("many", "x")])]


def start_checks(client, count):
    return [asyncio.create_task(client.check("edge", MANY)) for _ in range(count)]


async def test_single_check_is_sent_at_once(client, counts):
    assert (await client.check("edge", MANY)).source is Source.SERVER
    assert (counts.batches, counts.batched_checks) == (1, 1)


async def test_checks_during_a_call_share_the_next_one(server, make_client, counts):
    client = await make_client(server.address, calls_max=1, metrics=counts)
    await client.check("edge", MANY)
    with server.silent():
        first = start_checks(client, 1)
        await eventually("the first call is under way", lambda: counts.batches == 2)
        # These run before the answer can arrive: the server does not write.
        others = start_checks(client, 50)
        for _ in range(10):
            await asyncio.sleep(0)
        assert counts.batches == 2

    decisions = await asyncio.gather(*first, *others)

    assert {decision.source for decision in decisions} == {Source.SERVER}
    assert (counts.batches, counts.batched_checks, counts.largest_batch) == (3, 52, 50)


async def test_checks_of_one_turn_share_a_call_up_to_the_largest_batch(client, counts):
    decisions = await asyncio.gather(*start_checks(client, 600))

    assert all(decision.source is Source.SERVER for decision in decisions)
    assert (counts.batches, counts.batched_checks, counts.largest_batch) == (3, 600, 256)


async def test_answers_belong_to_their_checks(client):
    descriptors = [[Descriptor([("group", str(i))], hits=i % 10)] for i in range(100)]

    decisions = await asyncio.gather(*(client.check("edge", each) for each in descriptors))

    assert [decision.tightest.remaining for decision in decisions] == [10 - i % 10 for i in range(100)]


async def test_call_above_bound_of_server_is_split(start_server, make_client, counts):
    server = await start_server(flags=["--api-max-requests", "4"])
    client = await make_client(server.address, metrics=counts)

    decisions = await asyncio.gather(*start_checks(client, 30))

    assert [decision.source for decision in decisions] == [Source.SERVER] * 30
    assert (await client.peek("edge", MANY)).tightest.remaining == 970


async def test_large_requests_do_not_share_a_call(client, counts):
    descriptors = [[Descriptor([("group", f"{i}" * 600_000)])] for i in range(3)]

    decisions = await asyncio.gather(*(client.check("edge", each) for each in descriptors))

    assert [decision.tightest.remaining for decision in decisions] == [9, 9, 9]
    assert (counts.batches, counts.largest_batch) == (3, 1)


async def test_full_queue_gives_default_decision_and_is_counted(server, make_client, counts):
    client = await make_client(server.address, calls_max=1, queue_max=5, metrics=counts)
    with server.silent():
        *waiting, last = start_checks(client, 6)
        overflow = await last
    await asyncio.gather(*waiting)

    assert (overflow.allowed, overflow.source) == (True, Source.DEFAULT)
    assert (counts.outcomes[Outcome.QUEUE_FULL], counts.outcomes[Outcome.ALLOWED]) == (1, 5)


async def test_cancelled_check_in_queue_is_not_sent(server, make_client, counts):
    client = await make_client(server.address, calls_max=1, metrics=counts)
    with server.silent():
        first = start_checks(client, 1)
        await eventually("the first call is under way", lambda: counts.batches == 1)
        left, stays = start_checks(client, 2)
        await asyncio.sleep(0)
        left.cancel()
    await asyncio.gather(*first, stays)

    assert left.cancelled()
    assert (counts.batched_checks, counts.checks) == (2, 2)
    assert (await client.peek("edge", MANY)).tightest.remaining == 998
