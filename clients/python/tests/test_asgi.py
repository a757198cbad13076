"""The example application behind a real HTTP server."""

import asyncio
import http.client
import importlib.util
import pathlib
import socket

import pytest
import uvicorn

from server import LOOPBACK, eventually
from tollgate_client import Default, Descriptor, Question, RateLimitMiddleware

EXAMPLE = pathlib.Path(__file__).parents[1] / "example"


@pytest.fixture
async def serve():
    """Serves ASGI applications until the end, and returns their ports."""
    running = []

    async def start(app):
        listener = socket.create_server((LOOPBACK, 0))
        served = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        running.append((served, asyncio.create_task(served.serve([listener]))))
        await eventually("uvicorn has started", lambda: served.started)
        return listener.getsockname()[1]

    yield start
    for served, task in running:
        served.should_exit = True
        await task


@pytest.fixture
async def example(start_server, serve, monkeypatch):
    """The port of the example application."""
    server = await start_server((EXAMPLE / "rules.yaml").read_text())
    monkeypatch.setenv("TOLLGATE_TARGET", server.address)
    monkeypatch.setenv("TOLLGATE_TIMEOUT", "10")
    spec = importlib.util.spec_from_file_location("example_app", EXAMPLE / "app.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return await serve(module.app)


async def get(port, path="/", **headers):
    """The status, the headers with names in lower case, and the body."""

    def call():
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=20)
        try:
            connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            fields = {name.lower(): value for name, value in response.getheaders()}
            return response.status, fields, response.read().decode()
        finally:
            connection.close()

    return await asyncio.to_thread(call)


async def test_request_over_its_limit_is_429_with_headers(example):
    for remaining in ("2", "1", "0"):
        status, fields, body = await get(example, x_user="ann")
        assert (status, body) == (200, "hello ann\n")
        assert (fields["ratelimit-limit"], fields["ratelimit-remaining"]) == ("3", remaining)
        assert 3_500 < int(fields["ratelimit-reset"]) <= 3_600
        assert "retry-after" not in fields

    status, fields, body = await get(example, x_user="ann")

    assert (status, body) == (429, "")
    assert (fields["ratelimit-limit"], fields["ratelimit-remaining"]) == ("3", "0")
    assert 3_500 < int(fields["retry-after"]) <= 3_600
    assert fields["retry-after"] == fields["ratelimit-reset"]
    assert (await get(example, x_user="bob"))[0] == 200


async def test_request_without_question_is_not_limited(example):
    for _ in range(5):
        status, fields, _ = await get(example, "/health", x_user="ann")
        assert status == 200
        assert "ratelimit-limit" not in fields


async def test_headers_of_middleware_replace_those_of_the_application(client, serve):
    async def app(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"RateLimit-Limit", b"old")]})
        await send({"type": "http.response.body", "body": b"ok"})

    ann = Question("edge", [Descriptor([("user", "ann")])])
    port = await serve(RateLimitMiddleware(app, client, lambda _scope: ann))

    _, fields, _ = await get(port)

    assert fields["ratelimit-limit"] == "3"


async def test_default_refusal_is_429_without_headers(server, make_client, serve):
    client = await make_client(server.address, default=Default.DENY)
    server.stop()
    question = Question("edge", [Descriptor([("user", "ann")])])
    port = await serve(RateLimitMiddleware(None, client, lambda _scope: question))

    status, fields, _ = await get(port)

    assert status == 429
    assert not {"retry-after", "ratelimit-limit"} & fields.keys()


async def test_invalid_question_is_500_and_never_passes(client, serve):
    port = await serve(RateLimitMiddleware(None, client, lambda _scope: Question("", [])))

    assert (await get(port))[0] == 500
