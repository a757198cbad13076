"""Asks a server whether requests may pass."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable

import grpc
import grpc.aio

from . import wire
from .batcher import Batcher, QueueFull
from .deny_cache import DenyCache
from .metrics import Metrics, Outcome
from .model import (
    Decision,
    Default,
    Descriptor,
    InvalidRequest,
    NoAnswer,
    OnExpiry,
    Question,
    Reservation,
    Settlement,
    Source,
)
from .v1 import tollgate_pb2 as v1
from .v1.tollgate_pb2_grpc import RateLimiterStub

CHANNEL_OPTIONS = [
    # Every address of a name is connected, and calls take them in turn.
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
    # By default gRPC waits up to two minutes before it reconnects.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Detects a peer that disappeared without closing the connection.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    # Also without calls, so that the first one after a pause does not wait for a dead connection. By default gRPC stops
    # after two pings without data.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


class Client:
    """Make one for the process, and use it in one event loop: its channel carries all calls and reconnects by itself.

    It connects at its first call, so it can be made before the loop runs and while the server is down. Where a server
    forks its workers, each worker makes its own after the fork.
    """

    def __init__(
        self,
        target: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        timeout: float = 0.1,
        default: Default = Default.ALLOW,
        calls_max: int = 2,
        batch_max: int = 256,
        queue_max: int = 10_000,
        deny_cache_keys: int = 10_000,
        deny_cache_max: float = 1.0,
        metrics: Metrics | None = None,
    ) -> None:
        """`target` is a name in gRPC's form, such as `dns:///tollgate:8081`. Without `credentials` calls are plaintext.

        A check has its decision after `timeout` seconds at the latest, if necessary the `default` one. `calls_max`
        calls of `batch_max` checks (at most 256) are under way at once, and `queue_max` checks wait for them.
        `deny_cache_keys` refused keys are refused locally for their retry-after, at most `deny_cache_max` seconds; 0
        turns this off.
        """
        if timeout <= 0:
            raise ValueError("timeout must be positive")
        if calls_max < 1 or queue_max < 1:
            raise ValueError("calls_max and queue_max must be at least 1")
        if not 1 <= batch_max <= 256:
            raise ValueError("batch_max must be 1 to 256, as many as the server accepts")
        if deny_cache_keys < 0 or deny_cache_max < 0:
            raise ValueError("deny_cache_keys and deny_cache_max must not be negative")
        self._target = target
        self._credentials = credentials
        self._timeout = timeout
        self._default = default
        self.metrics = metrics or Metrics()
        self._deny_cache = DenyCache(deny_cache_keys, deny_cache_max)
        self._batcher = Batcher(
            self._check, timeout=timeout, calls_max=calls_max, batch_max=batch_max, queue_max=queue_max
        )
        self._channel: grpc.aio.Channel | None = None
        self._stub: RateLimiterStub | None = None
        # Settlements and cancellations under way. Each ends by the timeout.
        self._ends: set[asyncio.Task[Settlement]] = set()
        self._closed = False

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def check(
        self, domain: str, descriptors: Iterable[Descriptor], hits: int = 1, *, request_id: str | None = None
    ) -> Decision:
        """Charges the hits, and decides whether the request may pass. Raises `InvalidRequest`. With a `request_id` the
        server decides, and a repeated check counts once."""
        return await self.ask(Question(domain, descriptors, hits, request_id=request_id))

    async def ask(self, question: Question) -> Decision:
        """`check` of a question as one value."""
        begin = time.monotonic()
        try:
            decision, outcome = await self._decide(question, begin)
        except InvalidRequest:
            self.metrics.check(Outcome.INVALID, time.monotonic() - begin)
            raise
        self.metrics.check(outcome, time.monotonic() - begin)
        return decision

    async def peek(self, domain: str, descriptors: Iterable[Descriptor]) -> Decision:
        """Decides whether anything is left, and charges nothing. Raises `InvalidRequest`."""
        request = wire.peek_request_of(Question(domain, descriptors))
        try:
            call = self._connected().Peek(v1.PeekRequest(requests=[request]), timeout=self._timeout)
            return await _single_decision(call)
        except NoAnswer as error:
            return self._default_decision(error)

    async def refund(self, domain: str, descriptors: Iterable[Descriptor], hits: int = 1) -> Decision:
        """Gives hits back. Raises `NoAnswer`, after which the hits may be given back or not, or `InvalidRequest`."""
        request = wire.request_of(Question(domain, descriptors, hits))
        call = self._connected().Refund(v1.RefundRequest(requests=[request]), timeout=self._timeout)
        try:
            return await _single_decision(call)
        finally:
            # Also without an answer, since the server may have read the call.
            self._deny_cache.refund(wire.key_of(request), time.monotonic())

    async def reserve(
        self,
        domain: str,
        descriptors: Iterable[Descriptor],
        hits: int = 1,
        *,
        ttl: float = 60.0,
        on_expiry: OnExpiry = OnExpiry.RELEASE,
    ) -> Reservation:
        """Holds the hits until `settle` says how many were used. All limits hold them, or none does.

        The server is always asked; without an answer the decision is the default one. The reservation expires after
        `ttl` seconds, 1 ms to 24 h. Raises `InvalidRequest`, and `NoAnswer` after `close`. If the caller is cancelled
        meanwhile, the hits may be held until the reservation expires.
        """
        question = Question(domain, descriptors, hits)
        # Chosen here, so that a reservation whose answer is lost can be settled.
        reservation_id = uuid.uuid4().hex
        request = wire.reserve_request_of(question, ttl, on_expiry, reservation_id)
        call = self._connected().Reserve(request, timeout=self._timeout)
        try:
            reply = await _answered(call)
            return Reservation(question, wire.decision_of(reply.answer), reply.reservation_id)
        except NoAnswer as error:
            return Reservation(question, self._default_decision(error), reservation_id)

    async def settle(self, reservation: Reservation, actual: int) -> Settlement:
        """Ends a reservation at the hits that were used, for each descriptor without hits of its own: gives the rest
        back, or charges what is missing. If nothing is held, it does nothing.

        It is sent also if the caller is cancelled. Raises `NoAnswer`, after which the call may be repeated and answers
        as the first one, or `InvalidRequest`.
        """
        request = wire.settle_request_of(reservation, actual)
        return await self._end(reservation, request, lambda stub: stub.Settle(request, timeout=self._timeout))

    async def cancel(self, reservation: Reservation) -> Settlement:
        """Ends a reservation of which nothing was used. Raises as `settle` does."""
        request = wire.cancel_request_of(reservation)
        return await self._end(reservation, request, lambda stub: stub.Cancel(request, timeout=self._timeout))

    async def close(self) -> None:
        """Ends all calls. Checks under way get the default decision; settlements are waited for, until the timeout.
        Later checks and peeks get the default decision, too; other calls raise `NoAnswer`."""
        self._closed = True
        await self._batcher.close()
        await asyncio.gather(*self._ends, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()

    async def _decide(self, question: Question, now: float) -> tuple[Decision, Outcome]:
        request = wire.request_of(question)
        key, hits = wire.key_of(request), wire.hits_of(request)
        if not request.request_id and (local := self._deny_cache.find(key, hits, now)):
            return local, Outcome.DENIED_LOCALLY
        self._deny_cache.begin(key)
        try:
            self._connected()
            decision = wire.decision_of(await self._batcher.ask(request))
            self._deny_cache.insert(key, hits, decision, now)
        except NoAnswer as error:
            outcome = Outcome.QUEUE_FULL if isinstance(error, QueueFull) else Outcome.NO_ANSWER
            return self._default_decision(error), outcome
        finally:
            self._deny_cache.end(key)
        return decision, Outcome.ALLOWED if decision.allowed else Outcome.DENIED

    async def _end(
        self,
        reservation: Reservation,
        request: v1.SettleRequest | v1.CancelRequest,
        call: Callable[[RateLimiterStub], Awaitable],
    ) -> Settlement:
        if not reservation.id:
            return Settlement()
        # A task of its own, since what was used is charged also if the caller goes away.
        end = asyncio.create_task(self._ended(request, call(self._connected())))
        self._ends.add(end)
        end.add_done_callback(self._forget_end)
        return await asyncio.shield(end)

    async def _ended(self, request: v1.SettleRequest | v1.CancelRequest, call: Awaitable) -> Settlement:
        try:
            return wire.settlement_of(await _answered(call))
        finally:
            # Also without an answer, since the server may have given hits back.
            self._deny_cache.refund(wire.key_of(request), time.monotonic())

    def _forget_end(self, end: asyncio.Task[Settlement]) -> None:
        self._ends.discard(end)
        if not end.cancelled():
            # Read, so that asyncio does not report the error of a caller that has gone.
            end.exception()

    async def _check(self, requests: list[v1.Request], deadline: float) -> list[v1.Answer]:
        """One call for several requests, for the batcher."""
        self.metrics.batch(len(requests))
        timeout = deadline - asyncio.get_running_loop().time()
        reply = await _answered(self._connected().Check(v1.CheckRequest(requests=requests), timeout=timeout))
        return reply.answers

    def _default_decision(self, error: NoAnswer) -> Decision:
        return Decision(self._default is Default.ALLOW, Source.DEFAULT, reason=str(error))

    def _connected(self) -> RateLimiterStub:
        """The stub, whose channel belongs to the loop that runs when it is made."""
        if self._closed:
            raise NoAnswer("the client is closed")
        if self._stub is None:
            options = CHANNEL_OPTIONS + _authority_options(self._target)
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(self._target, options)
            else:
                self._channel = grpc.aio.secure_channel(self._target, self._credentials, options)
            self._stub = RateLimiterStub(self._channel)
        return self._stub


def _authority_options(target: str) -> list[tuple[str, str]]:
    """For a list of addresses, the first one as authority: by default it would be the list, which is not valid."""
    scheme, _, addresses = target.partition(":")
    first, separator, _ = addresses.partition(",")
    return [("grpc.default_authority", first)] if scheme in ("ipv4", "ipv6") and separator else []


async def _answered(call: Awaitable):
    """The reply of a call, or its failure in the terms of the model."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
            raise InvalidRequest(error.details()) from error
        raise NoAnswer(f"{error.code().name}: {error.details()}") from error
    except asyncio.CancelledError:
        if asyncio.current_task().cancelling():
            raise
        # The call is cancelled, and its caller is not.
        raise NoAnswer("the client was closed") from None


async def _single_decision(call: Awaitable) -> Decision:
    """The decision of a call with one request."""
    reply = await _answered(call)
    if len(reply.answers) != 1:
        raise NoAnswer(f"{len(reply.answers)} answers to 1 request")
    return wire.decision_of(reply.answers[0])
