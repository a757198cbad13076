"""The example that limits the tokens of a language model."""

import asyncio
import contextlib

import pytest

import web
from server import LOOPBACK, eventually
from tollgate_client import Descriptor, Request, Source
from vectors import ScriptedServer

# By the hour, so that nothing comes back during the test.
RULES = """
domain: models
descriptors:
  - key: requests
    rate_limit: {unit: hour, requests_per_unit: 2, algorithm: sliding_log}
  - key: tokens
    rate_limit: {unit: hour, requests_per_unit: 1000, algorithm: sliding_log}
"""
ANSWER = "Limits are kept exactly.\n" * 3


@pytest.fixture
async def server(start_server):
    return await start_server(RULES)


@pytest.fixture
async def start_example(server, serve, monkeypatch):
    """Starts the example with a model of this pace, and returns its port."""

    async def start(pace, server=server):
        monkeypatch.setenv("TOLLGATE_TARGET", server.address)
        monkeypatch.setenv("TOLLGATE_TIMEOUT", "10")
        monkeypatch.setenv("MODEL_PACE", str(pace))
        return await serve(web.load_example("llm").app)

    return start


async def remaining(client, key):
    decision = await client.peek(Request("models", [Descriptor([(key, "ann")])]))
    assert decision.source is Source.SERVER
    return decision.tightest.remaining


async def eventually_remain(client, key, hits):
    async def remain():
        return await remaining(client, key) == hits

    await eventually(f"{hits} {key} are left", remain)


async def test_answer_shorter_than_reserved_is_charged_as_sent(start_example, client):
    port = await start_example(pace=0)

    status, _, body = await web.get(port, "/chat?max_tokens=500", x_user="ann")

    assert (status, body) == (200, ANSWER)
    await eventually_remain(client, "tokens", 1_000 - 18)
    await eventually_remain(client, "requests", 1)


async def test_answer_whose_caller_goes_away_is_charged_as_sent(start_example, client):
    # The second token never comes.
    port = await start_example(pace=3_600)
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(b"GET /chat?max_tokens=600 HTTP/1.1\r\nhost: example\r\nx-user: ann\r\n\r\n")
    async with asyncio.timeout(20):
        await reader.readuntil(b"Limits")
    assert await remaining(client, "tokens") == 400, "they are held"

    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()

    await eventually_remain(client, "tokens", 999)
    await eventually_remain(client, "requests", 1)


async def test_call_over_a_limit_is_429_and_holds_nothing(start_example, client):
    port = await start_example(pace=0)

    assert (await web.get(port, "/chat?max_tokens=1001", x_user="ann"))[0] == 429
    assert (await remaining(client, "requests"), await remaining(client, "tokens")) == (2, 1_000)
    for _ in range(2):
        assert (await web.get(port, "/chat?max_tokens=1", x_user="ann"))[0] == 200

    status, fields, _ = await web.get(port, "/chat?max_tokens=1", x_user="ann")
    assert status == 429 and 3_500 < int(fields["retry-after"]) <= 3_600


async def test_call_without_valid_tokens_is_400(start_example):
    port = await start_example(pace=0)

    for tokens in ("0", "-1", "x", "1000000000", ""):
        assert (await web.get(port, f"/chat?max_tokens={tokens}"))[0] == 400


async def test_reservation_whose_answer_is_lost_is_canceled(start_example):
    async with ScriptedServer() as losing:
        port = await start_example(pace=0, server=losing)
        answer = asyncio.create_task(web.get(port, "/chat?max_tokens=600", x_user="ann"))
        reserve = await losing.calls.get()
        reserve.reply.set_result({"fails": ["UNAVAILABLE", "the answer is lost"]})

        cancel = await losing.calls.get()

        assert (cancel.method, cancel.message.reservation_id) == ("Cancel", reserve.message.reservation_id)
        cancel.reply.set_result({})
        assert (await answer)[0] == 503


async def test_rules_of_example_limit_tokens(start_server, start_example):
    server = await start_server((web.EXAMPLE / "llm_rules.yaml").read_text())
    port = await start_example(pace=0, server=server)

    assert (await web.get(port, "/chat?max_tokens=10001", x_user="ann"))[0] == 429
    assert (await web.get(port, "/chat?max_tokens=10000", x_user="ann"))[0] == 200
