"""The interceptor in a real `grpc.aio` server."""

import contextlib

import grpc
import grpc.aio
import pytest
from google.rpc import code_pb2, error_details_pb2, status_pb2

from server import LOOPBACK, eventually
from tollgate_client import Descriptor, Outcome, PrepaidSlices, Question, RateLimitInterceptor


def question(details):
    """Limits the user in the metadata; calls without one are not limited."""
    for key, value in details.invocation_metadata:
        if key == "user":
            return Question("edge" if value else "", [Descriptor([("user", value)])])
    return None


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


@contextlib.asynccontextmanager
async def calls_limited_by(checker, question=question):
    """Calls the echo server behind the interceptor: the reply and the trailing metadata."""
    server = grpc.aio.server(interceptors=[RateLimitInterceptor(checker, question)])
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("echo.Echo", HANDLERS)])
    port = server.add_insecure_port(f"{LOOPBACK}:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{port}") as channel:

        async def once(method, user=None):
            metadata = () if user is None else (("user", user),)
            begun = channel.stream_stream(f"/echo.Echo/{method}")(iter([b"1"]), metadata=metadata, timeout=20)
            reply = b"".join([reply async for reply in begun])
            return reply, dict(await begun.trailing_metadata())

        yield once
    await server.stop(None)


@pytest.fixture
async def call(client):
    async with calls_limited_by(client) as once:
        yield once


@pytest.mark.parametrize("method", HANDLERS)
async def test_call_over_its_limit_is_refused_with_retry_info(call, method):
    for remaining in ("2", "1", "0"):
        reply, metadata = await call(method, "ann")
        assert reply == b"1"
        assert (metadata["ratelimit-limit"], metadata["ratelimit-remaining"]) == ("3", remaining)

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(method, "ann")

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    metadata = dict(refused.value.trailing_metadata())
    assert (metadata["ratelimit-limit"], metadata["ratelimit-remaining"]) == ("3", "0")
    assert 3_500 < int(metadata["retry-after"]) <= 3_600
    status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
    assert (status.code, status.message) == (code_pb2.RESOURCE_EXHAUSTED, refused.value.details())
    retry_info = error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(retry_info)
    assert 3_500 < retry_info.retry_delay.seconds <= 3_600
    assert (await call(method, "bob"))[0] == b"1"


async def test_interceptor_spends_prepaid_slices(client, counts):
    many = Question("edge", [Descriptor([("many", "x")])])
    async with PrepaidSlices(client, hits=20, ttl=60, keys_max=1) as slices:
        async with calls_limited_by(slices, lambda _details: many) as call:

            async def prepaid():
                reply, metadata = await call("unary")
                assert (reply, metadata["ratelimit-limit"]) == (b"1", "1000")
                return counts.outcomes[Outcome.PREPAID] > 0

            await eventually("a call is prepaid", prepaid)


async def test_call_without_question_is_not_limited(call):
    for _ in range(5):
        reply, metadata = await call("unary")
        assert reply == b"1"
        assert "ratelimit-limit" not in metadata


async def test_call_of_unknown_method_is_unimplemented(call):
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call("nothing", "ann")

    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_invalid_question_is_internal_error_and_never_passes(call):
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call("unary", "")

    assert failed.value.code() is grpc.StatusCode.INTERNAL
