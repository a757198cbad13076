"""A client and slices with a real server: what the vectors cannot say."""

import asyncio
import socket

import grpc
import pytest
import trustme

from server import LOOPBACK, Relay, eventually
from tollgate_client import (
    Descriptor,
    InvalidRequestError,
    Limit,
    OnExpiry,
    PrepaidSlices,
    Request,
    SettledOutcome,
    SliceOptions,
    Source,
    Terms,
    Unit,
)
from tollgate_client.connections import CHANNEL_OPTIONS

ANN = Request("edge", [Descriptor([("user", "ann")])])
MANY = Request("edge", [Descriptor([("many", "x")])])
TOKENS = Request("edge", [Descriptor([("many", "x")])], 800)
OF_20 = SliceOptions(hits=20, ttl=60.0)


async def remaining(client, request):
    decision = await client.peek(request)
    assert decision.source is Source.SERVER
    return decision.tightest.remaining


async def eventually_remain(client, request, hits):
    async def remain():
        return await remaining(client, request) == hits

    await eventually(f"{hits} hits are left", remain)


async def answers(client):
    return (await client.check(MANY)).source is Source.SERVER


async def test_concurrent_checks_of_two_clients_pass_exactly_the_limit(server, make_client):
    clients = [await make_client(server.address) for _ in range(2)]

    decisions = await asyncio.gather(*(clients[i % 2].check(MANY) for i in range(1_500)))

    assert sum(decision.allowed for decision in decisions) == 1_000


async def test_check_reports_each_limit(client):
    own = Descriptor([("user", "bob")], hits=2, limit=Limit(7, Unit.DAY))
    decision = await client.check(Request("edge", [*ANN.descriptors, own], 3))
    denied = await client.check(ANN)

    first, second = decision.limits
    assert (first.descriptor, first.rule, first.requests_per_unit, first.unit) == (0, "edge.user", 3, Unit.HOUR)
    assert (first.remaining, first.refused) == (0, False)
    assert (second.descriptor, second.requests_per_unit, second.unit, second.remaining) == (1, 7, Unit.DAY, 5)
    assert 3_500 < denied.retry_after <= 3_600
    assert denied.tightest.refused and denied.tightest.retry_after == denied.retry_after


async def test_limits_say_what_shadow_mode_and_candidate_would_refuse(client):
    request = Request("edge", [Descriptor([("shadow", "x")]), Descriptor([("candidate", "x")])])

    first, second = [(await client.check(request)).limits for _ in range(2)]

    assert [(each.refused_in_shadow, each.refused_by_candidate) for each in first] == [(False, False)] * 2
    assert [(each.refused_in_shadow, each.refused_by_candidate) for each in second] == [(True, False), (False, True)]


@pytest.mark.parametrize(
    "request_",
    [
        Request("", ANN.descriptors),
        Request("edge", []),
        Request("edge", ANN.descriptors, -1),
        Request("edge", ANN.descriptors, 2**64),
        Request("edge", [Descriptor([("user", "\ud800")])]),
        Request("edge", [Descriptor([("user", 7)])]),
        Request("edge", [Descriptor([("user", "ann")], limit=Limit(1, Unit.UNKNOWN))]),
        Request("edge", ANN.descriptors, request_id="a" * 64),
        Request("edge", ANN.descriptors, request_id="\ud800"),
    ],
    ids=["domain", "descriptors", "negative", "large", "no Unicode", "no text", "unit", "long id", "id"],
)
async def test_invalid_request_is_an_error_of_client_and_slices(client, counts, request_):
    async with PrepaidSlices(client, OF_20) as slices:
        for checker in (client, slices):
            with pytest.raises(InvalidRequestError):
                await checker.check(request_)

    assert counts.outcomes == {"failed": 2}


async def test_missing_server_is_no_answer_at_once(make_client):
    # The socket stays bound, so that no other process listens there.
    with socket.socket() as bound:
        bound.bind((LOOPBACK, 0))
        client = await make_client(f"{LOOPBACK}:{bound.getsockname()[1]}")

        async with asyncio.timeout(5):
            decision = await client.check(ANN)

    assert decision.no_answer.code is grpc.StatusCode.UNAVAILABLE


async def test_listener_that_never_speaks_is_no_answer_in_time(make_client):
    with socket.create_server((LOOPBACK, 0)) as listener:
        client = await make_client(f"{LOOPBACK}:{listener.getsockname()[1]}", timeout=0.2)

        for decision in (await client.check(ANN), await client.peek(ANN)):
            assert decision.no_answer.message == "no answer in time"


async def test_client_reconnects_to_restarted_server(server, client, start_server):
    assert await answers(client)
    server.kill()
    assert not await answers(client)

    await start_server(flags=["--grpc-listen", server.address])

    await eventually("the server answers again", lambda: answers(client))


async def test_checks_take_all_addresses_in_turn(start_server, make_client):
    rules = "domain: edge\ndescriptors: [{{key: many, rate_limit: {{unit: hour, requests_per_unit: {limit}}}}}]\n"
    servers = [await start_server(rules.format(limit=limit)) for limit in (100, 200)]
    client = await make_client("ipv4:" + ",".join(server.address for server in servers), deny_cache_keys=0)
    seen = set()

    async def both_seen():
        limit = (await client.check(MANY)).tightest
        seen.add(limit and limit.requests_per_unit)
        return {100, 200} <= seen

    await eventually("both servers answer", both_seen)
    # As if the client did not know yet that a connection has closed.
    for channel in client._connections._channels.values():
        channel._watch.cancel()
    servers[0].kill()

    def closed():
        states = [channel._channel.get_state() for channel in client._connections._channels.values()]
        return any(state != grpc.ChannelConnectivity.READY for state in states)

    # A check that is sent over a closing connection may have charged, so it is not sent again.
    await eventually("gRPC knows that a connection has closed", closed)
    for _ in range(4):
        assert (await client.check(MANY)).tightest.requests_per_unit == 200, "the other server takes the checks"


async def test_idle_connection_is_pinged(server, make_client, monkeypatch):
    # Every 10 s, which is too long for a test.
    options = [(name, 100 if name == "grpc.keepalive_time_ms" else value) for name, value in CHANNEL_OPTIONS]
    monkeypatch.setattr("tollgate_client.connections.CHANNEL_OPTIONS", options)
    async with Relay(server.address).running() as relay:
        client = await make_client(relay.address)
        assert await answers(client)
        reads = relay.reads

        # Without pings while idle there is at most one read, and gRPC stops after two pings by default.
        await eventually("pings are sent", lambda: relay.reads >= reads + 6)


async def test_client_asks_over_tls(start_server, make_client, tmp_path):
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    flags = ["--grpc-tls-cert", tmp_path / "cert.pem", "--grpc-tls-key", tmp_path / "key.pem"]
    server = await start_server(flags=flags)
    trusted = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    name = server.address.replace(LOOPBACK, "localhost")

    assert await answers(await make_client(name, credentials=trusted))
    assert not await answers(await make_client(server.address, credentials=trusted)), "another name"
    other = grpc.ssl_channel_credentials(trustme.CA().cert_pem.bytes())
    assert not await answers(await make_client(name, credentials=other))


async def test_cancelled_caller_of_a_call_gets_no_decision(server, make_client):
    client = await make_client(server.address)
    with server.silent():
        peek = asyncio.create_task(client.peek(MANY))
        await asyncio.sleep(0)
        peek.cancel()
        with pytest.raises(asyncio.CancelledError):
            await peek


async def test_settlement_reports_each_limit(client):
    one = Descriptor([("group", "red")], hits=1)
    reservation = await client.reserve(Request("edge", [one, *TOKENS.descriptors], 800))
    assert await remaining(client, TOKENS) == 200

    settled = await client.settle(reservation, 1_200)

    requests, tokens = settled.limits
    assert not settled.unknown
    assert (requests.descriptor, requests.reserved, requests.remaining) == (0, 1, 9)
    assert (tokens.descriptor, tokens.rule, tokens.outcome) == (1, "edge.many", SettledOutcome.OPEN)
    assert (tokens.reserved, tokens.not_charged, tokens.remaining) == (800, 200, 0)
    assert await client.cancel(reservation) == settled


async def test_descriptors_expire_by_terms_of_their_own(client):
    # As if the caller had crashed: the place of the call is released, and its tokens stay charged.
    place = Descriptor([("group", "red")], hits=1, on_expiry=OnExpiry.RELEASE)
    reservation = await client.reserve(Request("edge", [*TOKENS.descriptors, place], 800), Terms(0.05, OnExpiry.CHARGE))

    await eventually_remain(client, Request("edge", [place]), 10)
    assert await remaining(client, TOKENS) == 200
    settled = await client.settle(reservation, 300, {1: 0})
    outcomes = [(limit.outcome, limit.remaining) for limit in settled.limits]
    assert outcomes == [(SettledOutcome.CHARGED, 700), (SettledOutcome.RELEASED, 10)]


async def test_settlement_of_cancelled_caller_is_sent_nevertheless(server, client, make_client):
    reservation = await client.reserve(TOKENS)
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

    await eventually_remain(client, TOKENS, 700)


async def test_invalid_settlement_is_an_error_and_may_be_corrected(client):
    reservation = await client.reserve(TOKENS)

    for actual in (-1, 2**64, "7"):
        with pytest.raises(InvalidRequestError):
            await client.settle(reservation, actual)

    assert (await client.settle(reservation, 300)).limits[0].remaining == 700


async def check_until_prepaid(slices, request):
    """Checks until the slice is there, and returns the number of checks."""
    passed = 0

    async def prepaid():
        nonlocal passed
        passed += 1
        return (await slices.check(request)).source is Source.PREPAID

    await eventually("a check is prepaid", prepaid)
    return passed


async def test_racing_slices_of_two_clients_pass_exactly_the_limit(server, make_client, client, counts):
    other_client = await make_client(server.address, deny_cache_keys=0)
    async with PrepaidSlices(client, OF_20) as one, PrepaidSlices(other_client, OF_20) as other:

        async def checks(slices):
            return sum([(await slices.check(MANY)).allowed for _ in range(100)])

        passed = sum(await asyncio.gather(*(checks(slices) for slices in (one, other) * 4)))

    assert await remaining(client, MANY) == 1_000 - passed
    assert counts.outcomes["prepaid"] > 0
    while (await other.check(MANY)).allowed:
        passed += 1
    assert passed == 1_000


async def test_slice_is_given_back_at_its_end(client):
    async with PrepaidSlices(client, SliceOptions(hits=20, ttl=0.3)) as slices:
        passed = await check_until_prepaid(slices, MANY)

        await eventually_remain(client, MANY, 1_000 - passed)


async def test_close_gives_the_rest_of_slices_back(client):
    slices = PrepaidSlices(client, OF_20)
    passed = await check_until_prepaid(slices, MANY)

    await slices.close()

    assert await remaining(client, MANY) == 1_000 - passed
    assert (await slices.check(MANY)).source is Source.SERVER


async def test_close_settles_a_slice_that_is_on_its_way(server, client, make_client):
    slices = PrepaidSlices(await make_client(server.address), OF_20)
    with server.silent():
        check = asyncio.create_task(slices.check(MANY))
        await asyncio.sleep(0)
        close = asyncio.create_task(slices.close())
        await asyncio.sleep(0)
    await close

    assert (await check).allowed
    assert await remaining(client, MANY) == 999


async def test_lost_settlement_counts_hits_that_stay_charged(server, client, counts):
    slices = PrepaidSlices(client, OF_20)
    await check_until_prepaid(slices, MANY)
    server.kill()

    await slices.close()

    assert counts.lost_hits == 19
