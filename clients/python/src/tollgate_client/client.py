"""Asks a server whether requests may pass."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import grpc
import grpc.aio

from . import wire
from .batcher import NO_ANSWER_IN_TIME, Batcher, QueueFullError
from .connections import CLOSED, Connections, Metadata
from .deny_cache import DenyCache
from .metrics import Metrics, Outcome
from .model import (
    DAY_SECONDS,
    Decision,
    Descriptor,
    LimitResult,
    NoAnswerError,
    OnNoAnswer,
    Request,
    Reservation,
    Settlement,
    Source,
    Terms,
    check_range,
)
from .v1 import tollgate_pb2 as v1

MILLION = 1_000_000


class Client:
    """Make one for the process, and use it in one event loop: its channels carry all calls and reconnect by themselves.

    It connects at its first call, so it can be made before the loop runs and while the server is down. Where a server
    forks its workers, each worker makes its own after the fork.
    """

    def __init__(
        self,
        target: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        timeout: float = 0.1,
        on_no_answer: OnNoAnswer = OnNoAnswer.ALLOW,
        calls_max: int = 2,
        batch_max: int = 256,
        queue_max: int = 10_000,
        deny_cache_keys: int = 10_000,
        deny_cache_max: float = 1.0,
        admin_token: str | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """`target` is a name in gRPC's form, such as `dns:///tollgate:8081`. Without `credentials` calls are plaintext.

        A call ends after `timeout` seconds, 1 ms to 60 s; without an answer, `on_no_answer` decides. `calls_max` calls
        (1 to 100) of `batch_max` checks (1 to 256) are under way at once, and `queue_max` checks (at most a million)
        wait for them. `deny_cache_keys` refused keys (at most a million) are denied locally for their retry-after, at
        most `deny_cache_max` seconds, 1 ms to 24 h; 0 keys turn this off. `admin_token` is sent with the calls of
        limits of their own only. Raises `ValueError`.
        """
        check_range("timeout", timeout, 0.001, 60.0)
        check_range("calls_max", calls_max, 1, 100)
        check_range("batch_max", batch_max, 1, 256)
        check_range("queue_max", queue_max, 1, MILLION)
        check_range("deny_cache_keys", deny_cache_keys, 0, MILLION)
        check_range("deny_cache_max", deny_cache_max, 0.001, DAY_SECONDS)
        # As a token has that was read from a file with its line break.
        if not re.fullmatch("[!-~]*", admin_token or ""):
            raise ValueError("admin_token is not visible ASCII")
        self._authorization = (("authorization", f"Bearer {admin_token}"),) if admin_token else ()
        self._target = target
        self._credentials = credentials
        self._timeout = timeout
        self._on_no_answer = on_no_answer
        self.metrics = metrics or Metrics()
        self._deny_cache = DenyCache(deny_cache_keys, deny_cache_max)
        self._batcher = Batcher(
            self._check, timeout=timeout, calls_max=calls_max, batch_max=batch_max, queue_max=queue_max
        )
        self._connections: Connections | None = None
        # Settlements and cancellations under way.
        self._ends: set[asyncio.Task[Settlement]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def check(self, request: Request) -> Decision:
        """Charges the hits, and decides whether the request may pass. Raises `InvalidRequestError`."""
        begin = time.monotonic()
        outcome = Outcome.FAILED
        try:
            decision, outcome = await self._decide(request, begin)
        finally:
            self.metrics.checked(outcome, time.monotonic() - begin)
        return decision

    async def peek(self, request: Request) -> Decision:
        """Decides whether anything is left, and charges nothing. Raises `InvalidRequestError`."""
        message = v1.PeekRequest(requests=[wire.peek_request_of(request)])
        try:
            reply = await self._call("Peek", message)
            return wire.decision_of(wire.only(reply.answers))
        except NoAnswerError as error:
            return self._default_decision(error)

    async def refund(self, request: Request) -> Decision:
        """Gives hits back. Raises `NoAnswerError`, after which the hits may be given back or not, or
        `InvalidRequestError`."""
        message = v1.RefundRequest(requests=[wire.request_of(request)])
        try:
            reply = await self._call("Refund", message)
            return wire.decision_of(wire.only(reply.answers))
        finally:
            # Also without an answer, since the server may have read the call.
            self._deny_cache.refund(request.key(), time.monotonic())

    async def reserve(self, request: Request, terms: Terms = Terms()) -> Reservation:
        """Holds the hits until `settle` says how many were used. All limits hold them, or none does.

        The server is always asked; without an answer the decision is the default one. Raises `InvalidRequestError`. If
        the caller is cancelled meanwhile, the hits may be held until the reservation expires.
        """
        # Chosen here, so that a reservation whose answer is lost can be settled.
        reservation_id = secrets.token_hex(16)
        message = wire.reserve_request_of(request, terms, reservation_id)
        try:
            reply = await self._call("Reserve", message)
            return Reservation(request, wire.decision_of(reply.answer), reply.reservation_id, reply.ended)
        except NoAnswerError as error:
            return Reservation(request, self._default_decision(error), reservation_id)

    async def settle(
        self, reservation: Reservation, actual: int, hits: Mapping[int, int] = MappingProxyType({})
    ) -> Settlement:
        """Ends a reservation at the hits that were used, for each descriptor without hits of its own: gives the rest
        back, or charges what is missing. `hits` of single descriptors, by their index, replace those with which they
        were reserved, and `actual`. If nothing is held, it does nothing.

        It is sent also if the caller is cancelled. Raises `NoAnswerError`, after which the call may be repeated and
        answers as the first one, or `InvalidRequestError`.
        """
        return await self._end(reservation, "Settle", wire.settle_request_of(reservation, actual, hits))

    async def cancel(self, reservation: Reservation) -> Settlement:
        """Ends a reservation of which nothing was used. Raises as `settle` does."""
        return await self._end(reservation, "Cancel", wire.cancel_request_of(reservation))

    async def set_limits(self, limits: Iterable[v1.SetLimit], *, dry_run: bool = False) -> list[LimitResult]:
        """Gives keys limits of their own, in place of the numbers of their rules. If one is invalid, none is set. The
        results are in the order of the limits. A `dry_run` only checks them.

        Raises `NoAnswerError`, also if the token is wrong, after which the limits may be set or not, or
        `InvalidRequestError`.
        """
        message = wire.set_request_of(limits, dry_run=dry_run)
        return await self._change_limits("SetLimits", message, len(message.limits))

    async def get_limits(self, domain: str, keys: Iterable[Descriptor]) -> list[LimitResult]:
        """Reads the limits of their own of keys. Raises as `set_limits` does."""
        message = wire.keys_request_of(v1.GetLimitsRequest, domain, keys)
        reply = await self._call("GetLimits", message, metadata=self._authorization)
        return wire.limit_results_of(len(message.descriptors), reply.results)

    async def clear_limits(self, domain: str, keys: Iterable[Descriptor]) -> list[LimitResult]:
        """Removes the limits of their own of keys: the numbers of their rules apply again. Raises as `set_limits`
        does."""
        message = wire.keys_request_of(v1.ClearLimitsRequest, domain, keys)
        return await self._change_limits("ClearLimits", message, len(message.descriptors))

    async def list_limits(self, domain: str = "", prefix: Iterable[tuple[str, str]] = ()) -> AsyncIterator[v1.OwnLimit]:
        """The limits of their own of a domain, by default of all, whose keys begin with these entries, read page by
        page. Raises as `set_limits` does. In a cluster they are those of all replicas."""
        message = wire.list_request_of(domain, prefix)
        while True:
            page = await self._call("ListLimits", message, metadata=self._authorization)
            for limit in page.limits:
                yield limit
            if not page.next_page_token:
                return
            message.page_token = page.next_page_token

    async def close(self) -> None:
        """Ends the connection, and the calls under way. Calls from then on have no answer."""
        self._closed = True
        if self._connections is not None:
            await self._connections.close()

    async def _decide(self, request: Request, now: float) -> tuple[Decision, Outcome]:
        message = wire.request_of(request)
        key, hits = request.key(), request.hits_of_each()
        if not request.request_id and (local := self._deny_cache.find(key, hits, now)):
            return local, Outcome.DENIED_LOCALLY
        self._deny_cache.begin(key)
        try:
            reply = await self._batcher.ask(message)
            decision = wire.decision_of(reply.answer)
            self._deny_cache.insert(key, hits, decision, reply.sent)
        except NoAnswerError as error:
            outcome = Outcome.QUEUE_FULL if isinstance(error, QueueFullError) else Outcome.NO_ANSWER
            return self._default_decision(error), outcome
        finally:
            self._deny_cache.end(key)
        return decision, Outcome.ALLOWED if decision.allowed else Outcome.DENIED

    async def _change_limits(
        self, method: str, message: v1.SetLimitsRequest | v1.ClearLimitsRequest, keys: int
    ) -> list[LimitResult]:
        try:
            reply = await self._call(method, message, metadata=self._authorization)
            return wire.limit_results_of(keys, reply.results)
        finally:
            # Also without an answer, since the server may have changed limits.
            self._deny_cache.clear(time.monotonic())

    async def _end(
        self, reservation: Reservation, method: str, message: v1.SettleRequest | v1.CancelRequest
    ) -> Settlement:
        if not reservation.id:
            return Settlement()
        # A task of its own, since what was used is charged also if the caller goes away.
        end = asyncio.create_task(self._ended(reservation, method, message))
        self._ends.add(end)
        end.add_done_callback(self._forget_end)
        return await asyncio.shield(end)

    async def _ended(
        self, reservation: Reservation, method: str, message: v1.SettleRequest | v1.CancelRequest
    ) -> Settlement:
        try:
            return wire.settlement_of(await self._call(method, message))
        finally:
            # Also without an answer, since the server may have given hits back.
            self._deny_cache.refund(reservation.request.key(), time.monotonic())

    def _forget_end(self, end: asyncio.Task[Settlement]) -> None:
        self._ends.discard(end)
        if not end.cancelled():
            # Read, so that asyncio does not report the error of a caller that has gone.
            end.exception()

    async def _check(self, requests: list[v1.Request], deadline: float) -> Sequence[v1.Answer]:
        """One call for several requests, for the batcher."""
        self._connected()
        self.metrics.sent(len(requests))
        reply = await self._call("Check", v1.CheckRequest(requests=requests), deadline)
        answers: Sequence[v1.Answer] = reply.answers
        return answers

    async def _call(
        self, method: str, message: Any, deadline: float | None = None, metadata: Metadata = ()
    ) -> Any:
        """The reply to a call that ends at this instant of the loop, by default after the timeout. Raises
        `InvalidRequestError` or `NoAnswerError`."""
        now = asyncio.get_running_loop().time
        if deadline is None:
            deadline = now() + self._timeout
        try:
            return await self._connected().call(method, message, deadline, metadata)
        except grpc.aio.AioRpcError as error:
            code, message = error.code(), error.details() or ""
        except TimeoutError:
            code, message = grpc.StatusCode.DEADLINE_EXCEEDED, NO_ANSWER_IN_TIME
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The call is cancelled, and its caller is not.
            code, message = grpc.StatusCode.CANCELLED, CLOSED
        if self._closed:
            code, message = grpc.StatusCode.CANCELLED, CLOSED
        # The server may say the same of a call of its own.
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and now() >= deadline:
            message = NO_ANSWER_IN_TIME
        raise wire.failure_of(code, message)

    def _default_decision(self, error: NoAnswerError) -> Decision:
        # Without the frames of the call, which would live as long as the decision.
        reason = error.with_traceback(None)
        return Decision(self._on_no_answer is OnNoAnswer.ALLOW, Source.DEFAULT, no_answer=reason)

    def _connected(self) -> Connections:
        """The connections, which belong to the loop that runs when they are made."""
        if self._closed:
            raise NoAnswerError(grpc.StatusCode.CANCELLED, CLOSED)
        if self._connections is None:
            self._connections = Connections(self._target, self._credentials)
        return self._connections
