"""The interceptor in a real `grpc.aio` server."""

import grpc
import grpc.aio
import pytest
from google.rpc import code_pb2, error_details_pb2, status_pb2

from server import LOOPBACK
from tollgate_client import Descriptor, Question, RateLimitInterceptor


def question(details):
    """Limits the user in the metadata; calls without one are not limited."""
    for key, value in details.invocation_metadata:
        if key == "user":
            return Question("edge" if value else "", [Descriptor([("user", value)])])
    return None


async def unary(request, _context):
    return request


async def stream(requests, _context):
    async for request in requests:
        yield request


@pytest.fixture
async def call(client):
    """Calls the echo server behind the interceptor."""
    server = grpc.aio.server(interceptors=[RateLimitInterceptor(client, question)])
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Stream": grpc.stream_stream_rpc_method_handler(stream),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("echo.Echo", handlers)])
    port = server.add_insecure_port(f"{LOOPBACK}:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{port}") as channel:

        async def once(kind, user=None):
            metadata = () if user is None else (("user", user),)
            if kind == "unary":
                return await channel.unary_unary("/echo.Echo/Unary")(b"1", metadata=metadata, timeout=20)
            replies = channel.stream_stream("/echo.Echo/Stream")(iter([b"1", b"2"]), metadata=metadata, timeout=20)
            return b"".join([reply async for reply in replies])

        yield once
    await server.stop(None)


@pytest.mark.parametrize(("kind", "reply"), [("unary", b"1"), ("stream", b"12")])
async def test_call_over_its_limit_is_refused_with_retry_info(call, kind, reply):
    assert [await call(kind, "ann") for _ in range(3)] == [reply] * 3

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(kind, "ann")

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    metadata = dict(refused.value.trailing_metadata())
    assert (metadata["ratelimit-limit"], metadata["ratelimit-remaining"]) == ("3", "0")
    assert 3_500 < int(metadata["retry-after"]) <= 3_600
    status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
    assert (status.code, status.message) == (code_pb2.RESOURCE_EXHAUSTED, refused.value.details())
    retry_info = error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(retry_info)
    assert 3_500 < retry_info.retry_delay.seconds < 3_600
    assert await call(kind, "bob") == reply


async def test_call_without_question_is_not_limited(call):
    assert [await call("unary") for _ in range(5)] == [b"1"] * 5


async def test_invalid_question_is_internal_error_and_never_passes(call):
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call("unary", "")

    assert failed.value.code() is grpc.StatusCode.INTERNAL
