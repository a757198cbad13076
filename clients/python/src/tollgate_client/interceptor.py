"""Limits the calls of a `grpc.aio` server."""

from __future__ import annotations

import asyncio
import inspect
import math
import typing
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from . import headers
from .checker import Checker
from .model import Decision, InvalidRequestError, Request, Source

if typing.TYPE_CHECKING:
    # These classes of grpc are generic for type checkers only.
    Handler = grpc.RpcMethodHandler[typing.Any, typing.Any]
    Context = grpc.aio.ServicerContext[typing.Any, typing.Any]
    Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]
    Behavior = Callable[[typing.Any, Context], typing.Any]


class RateLimitInterceptor(grpc.aio.ServerInterceptor):
    """Ends denied calls with `RESOURCE_EXHAUSTED`, or with `UNAVAILABLE` if the server gave no answer: the time until
    they pass is in `google.rpc.RetryInfo`.

    The trailing metadata of calls with a limit has `ratelimit-*` of the tightest one, unless the handler of an admitted
    call sets its own. `checker` decides: a `Client`, or `PrepaidSlices`. `describe` returns the `Request` of the method
    and the metadata of a call, or None if it has no limit.
    """

    def __init__(self, checker: Checker, describe: Callable[[grpc.HandlerCallDetails], Request | None]) -> None:
        self._checker = checker
        self._describe = describe

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        request = self._describe(handler_call_details)
        if request is None:
            return await continuation(handler_call_details)
        try:
            decision = await self._checker.check(request)
        except InvalidRequestError:
            return _aborting(grpc.StatusCode.INTERNAL, "the rate limit of this call is not set up correctly", ())
        if not decision.allowed:
            return _refusing(decision)
        if decision.delay > 0:
            await asyncio.sleep(decision.delay)
        handler = await continuation(handler_call_details)
        metadata = tuple(headers.of(decision))
        return _with_metadata(handler, metadata) if handler is not None and metadata else handler


def _refusing(decision: Decision) -> Handler:
    code, wait, message = grpc.StatusCode.RESOURCE_EXHAUSTED, decision.retry_after, headers.reason(decision)
    if decision.source is Source.DEFAULT:
        code, wait = grpc.StatusCode.UNAVAILABLE, headers.NO_ANSWER_WAIT
    status = status_pb2.Status(code=code.value[0], message=message)
    if wait:
        delay = Duration()
        # Rounded up, so that a caller does not retry too early.
        delay.FromNanoseconds(math.ceil(wait * 1e9))
        details = Any()
        details.Pack(error_details_pb2.RetryInfo(retry_delay=delay))
        status.details.append(details)
    metadata = (("grpc-status-details-bin", status.SerializeToString()), *headers.of(decision))
    return _aborting(code, message, metadata)


def _aborting(
    code: grpc.StatusCode, details: str, metadata: tuple[tuple[str, str | bytes], ...]
) -> Handler:
    """Ends a call of any kind without reading its messages."""

    async def abort(_requests: object, context: Context) -> None:
        await context.abort(code, details, metadata)

    return grpc.stream_stream_rpc_method_handler(abort)


def _with_metadata(handler: Handler, metadata: tuple[tuple[str, str], ...]) -> Handler:
    """The same handler, which sets the trailing metadata before it begins."""
    sides = [
        "stream" if streaming else "unary" for streaming in (handler.request_streaming, handler.response_streaming)
    ]
    kind = "_".join(sides)
    behavior = _behavior_with_metadata(getattr(handler, kind), metadata)
    constructor: Callable[..., Handler] = getattr(grpc, f"{kind}_rpc_method_handler")
    return constructor(behavior, handler.request_deserializer, handler.response_serializer)


def _behavior_with_metadata(behavior: Behavior, metadata: tuple[tuple[str, str], ...]) -> Behavior:
    # The server treats each of the three forms in its own way, so the form stays.
    async def generator(requests: typing.Any, context: Context) -> AsyncIterator[typing.Any]:
        context.set_trailing_metadata(metadata)
        async for response in behavior(requests, context):
            yield response

    async def coroutine(requests: typing.Any, context: Context) -> typing.Any:
        context.set_trailing_metadata(metadata)
        return await behavior(requests, context)

    def function(requests: typing.Any, context: Context) -> typing.Any:
        context.set_trailing_metadata(metadata)
        return behavior(requests, context)

    if inspect.isasyncgenfunction(behavior):
        return generator
    return coroutine if inspect.iscoroutinefunction(behavior) else function
