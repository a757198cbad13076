"""Hits that are held, and settled or canceled."""

import asyncio

import pytest

from server import eventually
from tollgate_client import (
    Default,
    Descriptor,
    InvalidRequest,
    NoAnswer,
    OnExpiry,
    SettledOutcome,
    Settlement,
    Source,
)

RULES = """
domain: models
descriptors:
  - key: requests
    rate_limit: {unit: hour, requests_per_unit: 5, algorithm: sliding_log}
  - key: tokens
    rate_limit: {name: of-tokens, unit: hour, requests_per_unit: 1000, algorithm: sliding_log}
"""
REQUESTS = [Descriptor([("requests", "ann")])]
TOKENS = [Descriptor([("tokens", "ann")])]
# A call of a model is one request, and as many tokens as it turns out.
CALL = [Descriptor([("requests", "ann")], hits=1), *TOKENS]


@pytest.fixture
async def server(start_server):
    return await start_server(RULES)


async def remaining(client, descriptors):
    decision = await client.peek("models", descriptors)
    assert decision.source is Source.SERVER
    return decision.tightest.remaining


async def test_settlement_of_less_than_reserved_gives_the_rest_back(client):
    reservation = await client.reserve("models", CALL, 800)
    assert reservation.decision.allowed
    assert await remaining(client, TOKENS) == 200

    settled = await client.settle(reservation, 300)

    requests, tokens = settled.limits
    assert not settled.unknown
    assert (requests.descriptor, requests.reserved, requests.remaining) == (0, 1, 4)
    assert (tokens.descriptor, tokens.rule, tokens.outcome) == (1, "of-tokens", SettledOutcome.OPEN)
    assert (tokens.reserved, tokens.not_charged, tokens.remaining) == (800, 0, 700)
    assert 3_500 < tokens.reset_after <= 3_600
    assert await remaining(client, TOKENS) == 700
    assert await remaining(client, REQUESTS) == 4


async def test_repeated_settlement_answers_as_the_first_one(client):
    reservation = await client.reserve("models", CALL, 800)

    settled = await client.settle(reservation, 300)

    assert await client.settle(reservation, 999) == settled
    assert await client.cancel(reservation) == settled
    assert await remaining(client, TOKENS) == 700


async def test_settlement_of_more_than_the_limit_says_what_is_not_charged(client):
    settled = await client.settle(await client.reserve("models", TOKENS, 800), 1_200)

    assert settled.limits[0].not_charged == 200
    assert await remaining(client, TOKENS) == 0


async def test_refused_reservation_of_one_limit_holds_nothing(client):
    refused = await client.reserve("models", CALL, 1_001)

    assert (refused.decision.allowed, refused.id) == (False, "")
    assert await client.settle(refused, 7) == await client.cancel(refused) == Settlement()
    assert await remaining(client, TOKENS) == 1_000
    assert await remaining(client, REQUESTS) == 5


async def test_concurrent_reservations_hold_no_more_than_the_limit(client):
    reservations = await asyncio.gather(*(client.reserve("models", TOKENS, 300) for _ in range(20)))

    assert sum(each.decision.allowed for each in reservations) == 3
    await asyncio.gather(*(client.settle(each, 100) for each in reservations))
    assert await remaining(client, TOKENS) == 700


async def test_cancellation_gives_all_back(client):
    canceled = await client.cancel(await client.reserve("models", CALL, 800))

    assert [limit.reserved for limit in canceled.limits] == [1, 800]
    assert await remaining(client, TOKENS) == 1_000
    assert await remaining(client, REQUESTS) == 5


@pytest.mark.parametrize(
    ("on_expiry", "left", "outcome"),
    [(OnExpiry.RELEASE, 1_000, SettledOutcome.RELEASED), (OnExpiry.CHARGE, 200, SettledOutcome.CHARGED)],
)
async def test_expired_reservation_is_released_or_charged(client, on_expiry, left, outcome):
    reservation = await client.reserve("models", TOKENS, 800, ttl=0.05, on_expiry=on_expiry)
    # Made later with the same ttl, so that both have expired when it is released.
    bob = [Descriptor([("tokens", "bob")])]
    await client.reserve("models", bob, ttl=0.05)

    async def expired():
        return await remaining(client, bob) == 1_000

    await eventually("the later reservation has expired", expired)
    assert await remaining(client, TOKENS) == left
    settled = await client.settle(reservation, 1)
    assert (settled.limits[0].outcome, settled.limits[0].remaining) == (outcome, 999)


async def test_settlement_after_local_denials_lets_requests_pass(server, make_client):
    client = await make_client(server.address, deny_cache_max=3_600)
    reservation = await client.reserve("models", TOKENS, 1_000)
    await client.check("models", TOKENS)
    assert (await client.check("models", TOKENS)).source is Source.DENY_CACHE

    await client.settle(reservation, 0)

    assert (await client.check("models", TOKENS)).allowed


async def test_settlement_of_cancelled_caller_is_sent_nevertheless(server, client, make_client):
    reservation = await client.reserve("models", TOKENS, 800)
    unconnected = await make_client(server.address)
    # Silent, so that there is no connection, and the call is not sent, when the caller goes.
    with server.silent():
        caller = asyncio.create_task(unconnected.settle(reservation, 300))
        # Turns of the loop for the caller and for the call.
        for _ in range(3):
            await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller

    async def settled():
        return await remaining(client, TOKENS) == 700

    await eventually("the hits that were used are charged", settled)


async def test_close_waits_for_settlements(server, client, make_client):
    closing = await make_client(server.address)
    reservation = await closing.reserve("models", TOKENS, 800)
    with server.silent():
        settlement = asyncio.create_task(closing.settle(reservation, 300))
        await asyncio.sleep(0)
        close = asyncio.create_task(closing.close())
        await asyncio.sleep(0)
        assert not close.done()
    await close

    assert (await settlement).limits[0].remaining == 700
    assert await remaining(client, TOKENS) == 700
    with pytest.raises(NoAnswer):
        await closing.settle(reservation, 300)


@pytest.mark.parametrize("ttl", [0, -1, 0.000_9, 86_401, 1e12, float("inf"), float("nan"), "1"], ids=str)
async def test_invalid_ttl_is_an_error(client, ttl):
    with pytest.raises(InvalidRequest):
        await client.reserve("models", TOKENS, ttl=ttl)


@pytest.mark.parametrize(("descriptors", "hits"), [([], 1), (TOKENS, 0), (TOKENS, -1)], ids=str)
async def test_invalid_reservation_is_an_error(client, descriptors, hits):
    with pytest.raises(InvalidRequest):
        await client.reserve("models", descriptors, hits)


async def test_invalid_settlement_is_an_error_and_may_be_corrected(client):
    reservation = await client.reserve("models", TOKENS, 800)

    for actual in (-1, 2**64, "7"):
        with pytest.raises(InvalidRequest):
            await client.settle(reservation, actual)

    assert (await client.settle(reservation, 300)).limits[0].remaining == 700


@pytest.mark.parametrize(("default", "allowed"), [(Default.ALLOW, True), (Default.DENY, False)])
async def test_reservation_without_server_gets_the_default(server, make_client, default, allowed):
    client = await make_client(server.address, default=default)
    held = await client.reserve("models", TOKENS)
    server.stop()

    reservation = await client.reserve("models", TOKENS)

    assert (reservation.decision.allowed, reservation.decision.source) == (allowed, Source.DEFAULT)
    assert reservation.id, "the server may hold it"
    for end in (client.settle(held, 1), client.cancel(held), client.settle(reservation, 1)):
        with pytest.raises(NoAnswer):
            await end


async def test_reservation_without_answer_is_settled_at_what_was_used(server, client, make_client):
    impatient = await make_client(server.address, timeout=0.3)

    async def connected():
        return (await impatient.peek("models", TOKENS)).source is Source.SERVER

    await eventually("the client is connected", connected)
    with server.silent():
        reservation = await impatient.reserve("models", TOKENS, 800)
    assert reservation.decision.source is Source.DEFAULT

    async def settled():
        try:
            await impatient.settle(reservation, 300)
        except NoAnswer:
            return False
        return True

    await eventually("the reservation is settled", settled)
    assert await remaining(client, TOKENS) == 700
