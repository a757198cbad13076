"""The ASGI middleware behind a real HTTP server, and the interceptor in a `grpc.aio` server."""

import asyncio
import contextlib
import time

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

import web
from server import LOOPBACK
from tollgate_client import Client, RateLimitInterceptor, RateLimitMiddleware
from vectors import ScriptedServer, client_options, request_of, vectors

LIMIT_NAMES = ("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset")


@contextlib.asynccontextmanager
async def scripted_client(vector):
    """A client of a server that gives the answer of the vector."""
    async with ScriptedServer() as server, Client(server.address, **client_options(vector)) as client:

        async def answer():
            (await server.calls.get()).reply.set_result({"answers": [vector["answer"]]})

        answering = asyncio.create_task(answer())
        yield client
        answering.cancel()


def describes(vector):
    return lambda _call: vector["request"] and request_of(vector["request"])


def assert_limited(vector, passes, begin, fields):
    """Asserts what the caller of any protocol sees."""
    assert passes == vector["passes"]
    assert {name: fields[name] for name in LIMIT_NAMES if name in fields} == vector["limit"]
    assert time.monotonic() - begin >= vector.get("waits_ms", 0) / 1_000


@vectors("middleware")
async def test_http_request_is_limited_as_in_the_vector(vector, serve):
    async def app(_scope, _receive, send):
        # The header is replaced if there is a limit.
        headers = [(b"RateLimit-Limit", b"old")] if vector["limit"] else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"passed"})

    async with scripted_client(vector) as client:
        port = await serve(RateLimitMiddleware(app, client, describes(vector)))
        begin = time.monotonic()
        accept = {"accept": vector["accept"]} if "accept" in vector else {}
        status, fields, body = await web.get(port, **accept)

    assert_limited(vector, body == "passed", begin, fields)
    expected = vector.get("http", {"status": 200, "retry_after": None})
    assert (status, fields.get("retry-after")) == (expected["status"], expected["retry_after"])
    if "body" in expected:
        assert (fields["content-type"].split(";")[0], body) == (expected.get("type", "text/plain"), expected["body"])


async def unary(request, _context):
    return request


async def generator(requests, _context):
    async for request in requests:
        yield request


async def writer(requests, context):
    async for request in requests:
        await context.write(request)


def thread(request, _context):
    return request


HANDLERS = {
    "unary": grpc.unary_unary_rpc_method_handler(unary),
    "generator": grpc.stream_stream_rpc_method_handler(generator),
    "writer": grpc.stream_stream_rpc_method_handler(writer),
    "thread": grpc.unary_unary_rpc_method_handler(thread),
}


async def call_limited(client, describe, method):
    """The reply of an echo server behind the interceptor, or the error, and the trailing metadata."""
    server = grpc.aio.server(interceptors=[RateLimitInterceptor(client, describe)])
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("echo.Echo", HANDLERS)])
    port = server.add_insecure_port(f"{LOOPBACK}:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"{LOOPBACK}:{port}") as channel:
            begun = channel.stream_stream(f"/echo.Echo/{method}")(iter([b"1"]), timeout=20)
            reply = b"".join([reply async for reply in begun])
            return reply, dict(await begun.trailing_metadata())
    except grpc.aio.AioRpcError as error:
        return error, dict(error.trailing_metadata())
    finally:
        await server.stop(None)


@pytest.mark.parametrize("method", HANDLERS)
@vectors("middleware")
async def test_grpc_call_is_limited_as_in_the_vector(vector, method):
    async with scripted_client(vector) as client:
        begin = time.monotonic()
        reply, metadata = await call_limited(client, describes(vector), method)

    assert_limited(vector, reply == b"1", begin, metadata)
    if not vector["passes"]:
        expected = vector["grpc"]
        assert (reply.code().name, reply.details()) == (expected["code"], expected["message"])
        details = status_pb2.Status.FromString(metadata.get("grpc-status-details-bin", b"")).details
        delays = [error_details_pb2.RetryInfo.FromString(each.value).retry_delay.ToMilliseconds() for each in details]
        assert delays == [delay for delay in [expected["retry_delay_ms"]] if delay is not None]


async def test_call_of_unknown_method_is_unimplemented(client):
    error, _ = await call_limited(client, lambda _call: request_of("ann"), "nothing")

    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_example_limits_requests_of_users(start_server, serve, monkeypatch):
    server = await start_server((web.EXAMPLE / "rules.yaml").read_text())
    monkeypatch.setenv("TOLLGATE_TARGET", server.address)
    monkeypatch.setenv("TOLLGATE_TIMEOUT", "10")
    port = await serve(web.load_example("app").app)

    statuses = [(await web.get(port, user="ann"))[0] for _ in range(4)]

    assert statuses == [200, 200, 200, 429]
    assert (await web.get(port, user="bob"))[2] == "hello bob\n"
    _, fields, _ = await web.get(port, "/health", user="ann")
    assert "ratelimit-limit" not in fields
