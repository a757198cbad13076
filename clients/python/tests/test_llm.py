"""The example that limits the users of a language model."""

import asyncio
import contextlib
import pathlib

import pytest

import web
from server import LOOPBACK, eventually
from tollgate_client import Descriptor, Request
from tollgate_client.v1 import tollgate_pb2 as v1
from vectors import ScriptedServer

RULES = (pathlib.Path(__file__).parents[2] / "llm.yaml").read_text()


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


async def used(client):
    """The tokens of the month, and the calls in flight."""
    descriptors = [Descriptor([(key, "ann")]) for key in ("tokens_of_month", "in_flight")]
    month, in_flight = (await client.peek(Request("models", descriptors))).limits
    return 1_000_000 - month.remaining, 4 - in_flight.remaining


async def eventually_used(client, *expected):
    async def is_used():
        return await used(client) == expected

    await eventually(f"{expected} are used", is_used)


async def test_answer_shorter_than_reserved_is_charged_as_sent(start_example, client):
    port = await start_example(pace=0)

    status, _, body = await web.get(port, "/chat?max_tokens=500", user="ann")

    assert (status, body) == (200, "Limits are kept exactly.\n" * 3)
    await eventually_used(client, 18, 0)


async def test_answer_whose_caller_goes_away_is_charged_as_sent(start_example, client):
    # The second token never comes.
    port = await start_example(pace=3_600)
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(b"GET /chat?max_tokens=6000 HTTP/1.1\r\nhost: example\r\nuser: ann\r\n\r\n")
    async with asyncio.timeout(20):
        await reader.readuntil(b"Limits")
    assert await used(client) == (6_000, 1), "they are held"
    status, fields, _ = await web.get(port, "/chat?max_tokens=6000", user="ann")
    assert status == 429 and 1 <= int(fields["retry-after"]) <= 12

    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()

    await eventually_used(client, 1, 0)


async def test_call_that_never_passes_is_refused_and_holds_nothing(start_example, client):
    port = await start_example(pace=0)

    status, fields, _ = await web.get(port, "/chat?max_tokens=10001", user="ann")

    assert (status, fields.get("retry-after")) == (429, None)
    assert await used(client) == (0, 0)


async def test_call_without_valid_tokens_is_400(start_example):
    port = await start_example(pace=0)

    for tokens in ("0", "-1", "x", "1000000000", ""):
        assert (await web.get(port, f"/chat?max_tokens={tokens}"))[0] == 400


async def test_reservation_whose_answer_is_lost_is_canceled(start_example):
    async with ScriptedServer() as losing:
        port = await start_example(pace=0, server=losing)
        answer = asyncio.create_task(web.get(port, "/chat?max_tokens=600", user="ann"))
        reserve = await losing.calls.get()
        # A crash of the example frees the place, and charges the rest.
        place = v1.Descriptor(entries=[v1.Entry(key="in_flight", value="ann")], hits=1, on_expiry="RELEASE")
        assert (reserve.message.descriptors[3], reserve.message.on_expiry) == (place, v1.ReserveRequest.CHARGE)
        reserve.reply.set_result({"fails": ["UNAVAILABLE", "the answer is lost"]})

        cancel = await losing.calls.get()

        assert (cancel.method, cancel.message.reservation_id) == ("Cancel", reserve.message.reservation_id)
        cancel.reply.set_result({})
        status, fields, _ = await answer
        assert (status, fields["retry-after"]) == (503, "1")
