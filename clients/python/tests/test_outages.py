"""What a client decides while servers are silent, gone, back, or several."""

import asyncio
import socket
import time

import grpc
import pytest
import trustme

from server import LOOPBACK, Relay, eventually
from tollgate_client import Client, Default, Descriptor, InvalidRequest, NoAnswer, Outcome, Source
from tollgate_client.client import CHANNEL_OPTIONS

ANN = [Descriptor([("user", "ann")])]
MANY = [Descriptor([("many", "x")])]
DEFAULTS = pytest.mark.parametrize(("default", "allowed"), [(Default.ALLOW, True), (Default.DENY, False)])


@pytest.fixture
def closed_port():
    # The socket stays bound, so that no other process listens there.
    with socket.socket() as bound:
        bound.bind((LOOPBACK, 0))
        yield f"{LOOPBACK}:{bound.getsockname()[1]}"


async def answers(client):
    return (await client.check("edge", MANY)).source is Source.SERVER


@DEFAULTS
async def test_silent_server_gives_default_decision_at_the_deadline(server, make_client, counts, default, allowed):
    client = await make_client(server.address, timeout=0.3, default=default, metrics=counts)
    await eventually("the server answers", lambda: answers(client))
    answered = counts.checks
    with server.silent():
        begin = time.monotonic()
        decisions = await asyncio.gather(*(client.check("edge", ANN) for _ in range(20)))
        seconds = time.monotonic() - begin

    assert {(decision.allowed, decision.source) for decision in decisions} == {(allowed, Source.DEFAULT)}
    assert all("0.3 s" in decision.reason or "DEADLINE" in decision.reason for decision in decisions)
    assert 0.3 <= seconds < 5
    assert counts.checks == answered + 20


async def test_listener_that_never_speaks_gives_default_decision(make_client):
    with socket.create_server((LOOPBACK, 0)) as listener:
        client = await make_client(f"{LOOPBACK}:{listener.getsockname()[1]}", timeout=0.2)

        decision = await client.check("edge", ANN)

    assert (decision.allowed, decision.source) == (True, Source.DEFAULT)


@DEFAULTS
async def test_missing_server_gives_default_decision_at_once(closed_port, make_client, counts, default, allowed):
    client = await make_client(closed_port, default=default, metrics=counts)

    decision = await client.check("edge", ANN)

    assert (decision.allowed, decision.source) == (allowed, Source.DEFAULT)
    assert "UNAVAILABLE" in decision.reason
    assert counts.outcomes[Outcome.NO_ANSWER] == 1
    assert counts.check_seconds < 5, "the timeout is 10 s"


async def test_peek_without_server_gives_default_decision(closed_port, make_client):
    client = await make_client(closed_port, default=Default.DENY)

    decision = await client.peek("edge", ANN)

    assert (decision.allowed, decision.source) == (False, Source.DEFAULT)


async def test_refund_without_server_is_an_error(closed_port, make_client):
    client = await make_client(closed_port)

    with pytest.raises(NoAnswer, match="UNAVAILABLE"):
        await client.refund("edge", ANN)


async def test_client_reconnects_to_restarted_server(server, client):
    assert await answers(client)
    server.stop()
    assert not await answers(client)

    await server.start()

    await eventually("the server answers again", lambda: answers(client))


async def test_checks_take_all_addresses_in_turn(start_server, make_client):
    rules = "domain: edge\ndescriptors: [{{key: many, rate_limit: {{unit: hour, requests_per_unit: {limit}}}}}]\n"
    servers = [await start_server(rules.format(limit=limit)) for limit in (100, 200)]
    client = await make_client("ipv4:" + ",".join(server.address for server in servers), deny_cache_keys=0)
    seen = set()

    async def both_seen():
        limit = (await client.check("edge", MANY)).tightest
        seen.add(limit and limit.requests_per_unit)
        return {100, 200} <= seen

    await eventually("both servers answer", both_seen)


async def test_idle_connection_is_pinged(server, make_client, monkeypatch):
    # Every 10 s, which is too long for a test.
    options = [(name, 100 if name == "grpc.keepalive_time_ms" else value) for name, value in CHANNEL_OPTIONS]
    monkeypatch.setattr("tollgate_client.client.CHANNEL_OPTIONS", options)
    async with Relay(server.address).running() as relay:
        client = await make_client(relay.address)
        assert await answers(client)
        reads = relay.reads

        # Without pings while idle there is at most one read, and gRPC stops after two pings by default.
        await eventually("pings are sent", lambda: relay.reads >= reads + 6)


async def test_client_asks_over_tls(start_server, make_client, tmp_path):
    authority = trustme.CA()
    certificate = authority.issue_cert(LOOPBACK)
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    flags = ["--grpc-tls-cert", tmp_path / "cert.pem", "--grpc-tls-key", tmp_path / "key.pem"]
    server = await start_server(flags=flags)
    trusted = grpc.ssl_channel_credentials(authority.cert_pem.bytes())

    assert await answers(await make_client(server.address, credentials=trusted))
    other = grpc.ssl_channel_credentials(trustme.CA().cert_pem.bytes())
    assert not await answers(await make_client(server.address, credentials=other))


async def test_close_gives_default_decision_to_open_checks(server, make_client, counts):
    client = await make_client(server.address, calls_max=1, default=Default.DENY, metrics=counts)
    with server.silent():
        sent = asyncio.create_task(client.check("edge", ANN))
        await eventually("the call is under way", lambda: counts.batches == 1)
        queued = asyncio.create_task(client.check("edge", ANN))
        await asyncio.sleep(0)
        await client.close()

        decisions = await asyncio.gather(sent, queued)

    assert [(each.allowed, each.source) for each in decisions] == [(False, Source.DEFAULT)] * 2


async def test_close_ends_other_open_calls_without_answer(server, make_client):
    client = await make_client(server.address, default=Default.DENY)
    with server.silent():
        calls = [asyncio.create_task(call) for call in (client.peek("edge", MANY), client.refund("edge", MANY))]
        calls.append(asyncio.create_task(client.reserve("edge", MANY)))
        # A turn of the loop in which the calls begin.
        await asyncio.sleep(0)
        await client.close()

        peek, refund, reservation = await asyncio.gather(*calls, return_exceptions=True)

    assert (peek.allowed, peek.source) == (False, Source.DEFAULT)
    assert isinstance(refund, NoAnswer)
    assert reservation.decision.source is Source.DEFAULT


async def test_cancelled_caller_of_a_call_gets_no_decision(server, make_client):
    client = await make_client(server.address)
    with server.silent():
        peek = asyncio.create_task(client.peek("edge", MANY))
        await asyncio.sleep(0)
        peek.cancel()
        with pytest.raises(asyncio.CancelledError):
            await peek


@DEFAULTS
async def test_closed_client_gives_default_decision(server, make_client, counts, default, allowed):
    client = await make_client(server.address, default=default, metrics=counts)
    reservation = await client.reserve("edge", MANY)
    await client.close()

    for decision in (await client.check("edge", ANN), await client.peek("edge", ANN)):
        assert (decision.allowed, decision.source, decision.reason) == (allowed, Source.DEFAULT, "the client is closed")

    assert counts.outcomes[Outcome.NO_ANSWER] == 1
    with pytest.raises(InvalidRequest):
        await client.check("edge", ANN, hits=-1)
    calls = [client.refund("edge", ANN), client.reserve("edge", ANN)]
    for call in (*calls, client.settle(reservation, 1), client.cancel(reservation)):
        with pytest.raises(NoAnswer, match="closed"):
            await call


@pytest.mark.parametrize(
    "settings",
    [
        {"timeout": 0},
        {"calls_max": 0},
        {"batch_max": 257},
        {"batch_max": 0},
        {"queue_max": 0},
        {"deny_cache_keys": -1},
        {"deny_cache_max": -1},
    ],
    ids=str,
)
def test_setting_out_of_range_is_an_error(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        Client(f"{LOOPBACK}:1", **settings)
