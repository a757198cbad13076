"""Slices of limits that are reserved, and spent without calls."""

import asyncio

import pytest

from server import eventually
from tollgate_client import Descriptor, InvalidRequest, Outcome, PrepaidSlices, Source

RULES = """
domain: edge
descriptors:
  - key: group
    rate_limit: {unit: hour, requests_per_unit: 100, algorithm: sliding_log}
  - key: second
    rate_limit: {unit: second, requests_per_unit: 1000000, algorithm: fixed_window}
"""
RED = [Descriptor([("group", "red")])]
BLUE = [Descriptor([("group", "blue")])]
OF_20 = {"hits": 20, "ttl": 60.0, "keys_max": 10}


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
