"""Slices of limits that are reserved, and spent without calls."""

import asyncio
import time

import pytest

from server import eventually
from tollgate_client import Client, Descriptor, InvalidRequest, NoAnswer, Outcome, PrepaidSlices, Source

RULES = """
domain: edge
descriptors:
  - key: group
    rate_limit: {unit: hour, requests_per_unit: 100, algorithm: sliding_log}
  - key: many
    rate_limit: {unit: hour, requests_per_unit: 1000000, algorithm: sliding_window}
  - key: second
    rate_limit: {unit: second, requests_per_unit: 1000000, algorithm: fixed_window}
  - key: fast
    rate_limit: {unit: second, requests_per_unit: 1000000, algorithm: token_bucket}
"""
RED = [Descriptor([("group", "red")])]
BLUE = [Descriptor([("group", "blue")])]
MANY = [Descriptor([("many", "x")])]
OF_20 = {"hits": 20, "ttl": 60.0, "keys_max": 10}


class Recorder(Client):
    """Counts the calls of slices."""

    reserved = 0
    unanswered = 0

    async def reserve(self, *args, **terms):
        self.reserved += 1
        return await super().reserve(*args, **terms)

    async def settle(self, reservation, actual):
        try:
            return await super().settle(reservation, actual)
        except NoAnswer:
            self.unanswered += 1
            raise


@pytest.fixture
async def server(start_server):
    return await start_server(RULES)


async def remaining(client, descriptors):
    decision = await client.peek("edge", descriptors)
    assert decision.source is Source.SERVER
    return decision.tightest.remaining


async def check_until_prepaid(slices, descriptors):
    """Checks until the slice is there, and returns the number of checks, which have all passed."""
    passed = 0

    async def prepaid():
        nonlocal passed
        decision = await slices.check("edge", descriptors)
        assert decision.allowed
        passed += 1
        return decision.source is Source.PREPAID

    await eventually("a check is prepaid", prepaid)
    return passed


async def test_racing_checks_of_two_processes_pass_exactly_the_limit(server, client, make_client, counts):
    other_client = await make_client(server.address, deny_cache_keys=0)
    async with PrepaidSlices(client, **OF_20) as one, PrepaidSlices(other_client, **OF_20) as other:

        async def checks(slices):
            return sum([(await slices.check("edge", RED)).allowed for _ in range(30)])

        passed = sum(await asyncio.gather(*(checks(slices) for slices in (one, other) * 4)))

    assert await remaining(client, RED) == 100 - passed
    assert counts.outcomes[Outcome.PREPAID] > 0
    while (await other.check("edge", RED)).allowed:
        passed += 1
    assert passed == 100


async def test_slice_without_server_is_spent_locally(server, client, counts):
    async with PrepaidSlices(client, **OF_20) as slices:
        await check_until_prepaid(slices, RED)
        sent = counts.batches
        server.stop()

        decision = await slices.check("edge", RED)

        assert (decision.allowed, decision.source) == (True, Source.PREPAID)
        assert decision.tightest.requests_per_unit == 100
        assert counts.batches == sent


async def test_prepaid_checks_report_what_is_left(client):
    async with PrepaidSlices(client, **OF_20) as slices:
        passed = await check_until_prepaid(slices, RED)

        left = (await slices.check("edge", RED)).tightest.remaining

        # Checks that were sent after the reservation are not in its answer.
        assert 100 - passed - 1 <= left < 100


async def test_close_gives_the_rest_back(client):
    slices = PrepaidSlices(client, **OF_20)
    passed = await check_until_prepaid(slices, RED)

    await slices.close()

    assert await remaining(client, RED) == 100 - passed
    assert (await slices.check("edge", RED)).source is Source.SERVER


async def test_close_settles_a_slice_that_is_on_its_way(server, client, make_client):
    closing = await make_client(server.address)
    slices = PrepaidSlices(closing, **OF_20)
    with server.silent():
        check = asyncio.create_task(slices.check("edge", RED))
        await asyncio.sleep(0)
        close = asyncio.create_task(slices.close())
        await asyncio.sleep(0)
    await close

    assert (await check).allowed
    assert await remaining(client, RED) == 99


async def test_slice_at_its_end_gives_the_rest_back(client):
    async with PrepaidSlices(client, hits=20, ttl=0.3, keys_max=10) as slices:
        passed = await check_until_prepaid(slices, RED)

        async def given_back():
            return await remaining(client, RED) == 100 - passed

        await eventually("the rest is given back", given_back)


async def test_slice_ends_with_the_window_of_its_limit(server, client):
    second = [Descriptor([("second", "any")])]
    async with PrepaidSlices(client, hits=500_000, ttl=3_600, keys_max=10) as slices:
        await check_until_prepaid(slices, second)
        server.stop()

        async def asks_the_server():
            return (await slices.check("edge", second)).source is Source.DEFAULT

        await eventually("the slice cannot be spent any more", asks_the_server)


async def test_half_spent_slice_is_renewed(client, counts):
    slices = PrepaidSlices(client, **OF_20)
    passed = 0
    for _ in range(3):
        passed += await check_until_prepaid(slices, RED)
        for _ in range(20):
            assert (await slices.check("edge", RED)).allowed
            passed += 1
    await slices.close()

    assert await remaining(client, RED) == 100 - passed
    assert counts.outcomes[Outcome.PREPAID] > 20


async def test_slice_larger_than_the_limit_is_left_out(client, counts):
    async with PrepaidSlices(client, hits=101, ttl=60, keys_max=10) as slices:
        passed = 0
        while (await slices.check("edge", RED)).allowed:
            passed += 1

    assert passed == 100
    assert counts.outcomes[Outcome.PREPAID] == 0


async def test_keys_beyond_their_maximum_ask_the_server(client):
    async with PrepaidSlices(client, hits=20, ttl=60, keys_max=1) as slices:
        await check_until_prepaid(slices, RED)

        sources = {(await slices.check("edge", BLUE)).source for _ in range(20)}

        assert sources == {Source.SERVER}
        assert await remaining(client, BLUE) == 80


async def test_slice_that_ends_too_soon_is_given_back_and_pauses(client, counts):
    begin = time.monotonic()
    async with PrepaidSlices(client, hits=20, ttl=60, keys_max=1) as slices:
        # The bucket refills 20 hits within 20 us.
        assert (await slices.check("edge", [Descriptor([("fast", "x")]), *RED])).source is Source.SERVER

        # There is no room for another key before the end of the pause.
        await check_until_prepaid(slices, [Descriptor([("second", "any")])])
        assert time.monotonic() - begin >= 1

    assert await remaining(client, RED) == 99
    assert counts.lost_hits == 0


async def test_check_beyond_a_slice_neither_reserves_nor_renews_it(server, client):
    async with Recorder(server.address, timeout=10.0) as recorder:
        async with PrepaidSlices(recorder, hits=20, ttl=0.5, keys_max=10) as slices:
            assert (await slices.check("edge", MANY, hits=21)).source is Source.SERVER
            assert recorder.reserved == 0

            used = 21 + await check_until_prepaid(slices, MANY)

            async def slice_has_ended():
                nonlocal used
                assert (await slices.check("edge", MANY, hits=21)).source is Source.SERVER
                used += 21
                return await remaining(client, MANY) == 1_000_000 - used

            await eventually("the rest of the slice is given back", slice_has_ended)
            assert recorder.reserved == 1


async def test_settlement_without_answer_is_repeated(server, client, counts):
    async with Recorder(server.address, timeout=2.0, metrics=counts) as recorder:
        slices = PrepaidSlices(recorder, **OF_20)
        passed = await check_until_prepaid(slices, RED)
        with server.silent():
            close = asyncio.create_task(slices.close())
            await eventually("the first settlement has no answer", lambda: recorder.unanswered > 0)
        await close

    assert recorder.unanswered < 3
    assert counts.lost_hits == 0
    assert await remaining(client, RED) == 100 - passed


async def test_lost_settlement_counts_hits_that_stay_charged(server, counts):
    async with Recorder(server.address, timeout=10.0, metrics=counts) as recorder:
        slices = PrepaidSlices(recorder, **OF_20)
        await check_until_prepaid(slices, RED)
        assert (await slices.check("edge", RED)).source is Source.PREPAID
        server.stop()

        await slices.close()

    assert recorder.unanswered == 3
    assert counts.lost_hits == 18


async def test_reservation_without_answer_counts_no_lost_hits(server, counts):
    server.stop()
    async with Recorder(server.address, timeout=10.0, metrics=counts) as recorder:
        slices = PrepaidSlices(recorder, **OF_20)
        assert (await slices.check("edge", RED)).source is Source.DEFAULT
        await slices.close()

    assert recorder.unanswered == 3
    assert counts.lost_hits == 0


async def test_check_with_request_id_asks_the_server(client):
    async with PrepaidSlices(client, **OF_20) as slices:
        passed = await check_until_prepaid(slices, RED)

        for _ in range(2):
            assert (await slices.check("edge", RED, request_id="once")).source is Source.SERVER

    assert await remaining(client, RED) == 100 - passed - 1


async def test_slices_of_closed_client_give_default_decision(server, client):
    async with PrepaidSlices(client, **OF_20) as slices:
        await client.close()

        assert (await slices.check("edge", RED)).source is Source.DEFAULT


async def test_expired_key_makes_room_for_another(client):
    async with PrepaidSlices(client, hits=20, ttl=0.3, keys_max=1) as slices:
        await check_until_prepaid(slices, RED)

        await check_until_prepaid(slices, BLUE)


async def test_hits_of_descriptor_ask_the_server(client):
    async with PrepaidSlices(client, **OF_20) as slices:
        await check_until_prepaid(slices, RED)

        decision = await slices.check("edge", [Descriptor([("group", "red")], hits=2)])

        assert decision.source is Source.SERVER


async def test_invalid_request_of_a_slice_is_an_error(client):
    async with PrepaidSlices(client, **OF_20) as slices:
        await check_until_prepaid(slices, RED)
        for domain, descriptors, hits in [("", RED, 1), ("edge", RED, -1), ("edge", RED, 0), ("\ud800", RED, 1)]:
            with pytest.raises(InvalidRequest):
                await slices.check(domain, descriptors, hits)


@pytest.mark.parametrize(
    "setting", [{"hits": 0}, {"keys_max": 0}, {"ttl": 0.0}, {"ttl": 86_401}, {"ttl": float("nan")}], ids=str
)
async def test_setting_out_of_range_is_an_error(client, setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        PrepaidSlices(client, **{**OF_20, **setting})
