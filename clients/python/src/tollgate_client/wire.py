"""Translates between the model and the messages of `tollgate.v1`."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from .model import (
    Decision,
    Descriptor,
    InvalidRequestError,
    LimitError,
    LimitResult,
    LimitStatus,
    NoAnswerError,
    Request,
    Reservation,
    SettledLimit,
    SettledOutcome,
    Settlement,
    Terms,
    Unit,
)
from .v1 import tollgate_pb2 as v1

# The server reads messages of 4 MiB, which contain a request and its length.
REQUEST_BYTES_MAX = (4 << 20) - 16
CODES = {code.value[0]: code for code in grpc.StatusCode}

M = TypeVar("M", bound=Message)


def request_of(request: Request) -> v1.Request:
    """The request of a check or a refund."""
    return _message(v1.Request, request, hits=request.hits, request_id=request.request_id)


def peek_request_of(request: Request) -> v1.Request:
    """The request without hits."""
    message = _message(v1.Request, request)
    for descriptor in message.descriptors:
        descriptor.ClearField("hits")
    return message


def reserve_request_of(request: Request, terms: Terms, reservation_id: str) -> v1.ReserveRequest:
    return _message(
        v1.ReserveRequest,
        request,
        amount=request.hits,
        ttl=datetime.timedelta(seconds=terms.ttl),
        reservation_id=reservation_id,
        on_expiry=terms.on_expiry.name,
    )


def settle_request_of(reservation: Reservation, actual: int, hits: Mapping[int, int]) -> v1.SettleRequest:
    message = _message(v1.SettleRequest, reservation.request, reservation_id=reservation.id, actual=actual)
    for index, used in hits.items():
        if index not in range(len(message.descriptors)):
            raise InvalidRequestError(f"hits of descriptor {index}, of {len(message.descriptors)} descriptors")
        try:
            message.descriptors[index].hits = used
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(str(error)) from error
    return message


def cancel_request_of(reservation: Reservation) -> v1.CancelRequest:
    return _message(v1.CancelRequest, reservation.request, reservation_id=reservation.id)


def settlement_of(reply: v1.SettleResponse | v1.CancelResponse) -> Settlement:
    return Settlement(tuple(_settled_limit_of(limit) for limit in reply.limits), reply.unknown)


def set_request_of(limits: Iterable[v1.SetLimit], *, dry_run: bool) -> v1.SetLimitsRequest:
    return _sized(v1.SetLimitsRequest(limits=limits, dry_run=dry_run))


def keys_request_of(kind: type[M], domain: str, keys: Iterable[Descriptor]) -> M:
    """A request for the limits of their own of keys."""
    return _message(kind, Request(domain, keys))


def list_request_of(domain: str, prefix: Iterable[tuple[str, str]]) -> v1.ListLimitsRequest:
    try:
        return v1.ListLimitsRequest(domain=domain, prefix=[v1.Entry(key=key, value=value) for key, value in prefix])
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(str(error)) from error


def limit_results_of(keys: int, results: Sequence[v1.LimitResult]) -> list[LimitResult]:
    """The results for so many keys. Raises `NoAnswerError`."""
    _check_number(keys, results)
    return [_limit_result_of(result) for result in results]


def only(answers: Sequence[v1.Answer]) -> v1.Answer:
    """The answer of a call with one request."""
    return answers_to(1, answers)[0]


def answers_to(requests: int, answers: Sequence[v1.Answer]) -> Sequence[v1.Answer]:
    """The answers to so many requests. Raises `NoAnswerError`."""
    _check_number(requests, answers)
    return answers


def _check_number(requests: int, answers: Sequence[object]) -> None:
    if len(answers) != requests:
        raise NoAnswerError(grpc.StatusCode.INTERNAL, f"{len(answers)} answers to {requests} requests")


def failure_of(code: grpc.StatusCode, message: str) -> InvalidRequestError | NoAnswerError:
    """What an error of the server or of the connection means."""
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidRequestError(message)
    return NoAnswerError(code, message)


def decision_of(answer: v1.Answer) -> Decision:
    """Raises `InvalidRequestError` or `NoAnswerError` if the request was not decided."""
    if answer.verdict not in (v1.Answer.ALLOWED, v1.Answer.DENIED):
        if not answer.HasField("error"):
            raise NoAnswerError(grpc.StatusCode.INTERNAL, "the server answered without a verdict")
        raise failure_of(CODES.get(answer.error.code, grpc.StatusCode.UNKNOWN), answer.error.message)
    return Decision(
        allowed=answer.verdict == v1.Answer.ALLOWED,
        delay=_seconds(answer.delay),
        retry_after=_present_seconds(answer, "retry_after"),
        limits=tuple(_limit_status_of(limit) for limit in answer.limits),
        degraded=answer.degraded,
        never_because=answer.never_because,
    )


def _message(kind: type[M], request: Request, **fields: object) -> M:
    """A message with the domain and the descriptors of a request, and with these fields."""
    try:
        descriptors = [_descriptor(descriptor) for descriptor in request.descriptors]
        message = kind(domain=request.domain, descriptors=descriptors, **fields)
    except (TypeError, ValueError) as error:
        # A number that the protocol does not have, text that is not Unicode, or another type.
        raise InvalidRequestError(str(error)) from error
    return _sized(message)


def _sized(message: M) -> M:
    # The server's error for it would lead to the default decision.
    if (size := message.ByteSize()) > REQUEST_BYTES_MAX:
        raise InvalidRequestError(f"the request has {size} bytes, of at most {REQUEST_BYTES_MAX}")
    return message


def _descriptor(descriptor: Descriptor) -> v1.Descriptor:
    entries = [v1.Entry(key=key, value=value) for key, value in descriptor.entries]
    on_expiry = None if descriptor.on_expiry is None else descriptor.on_expiry.name
    message = v1.Descriptor(entries=entries, hits=descriptor.hits, on_expiry=on_expiry)
    if (limit := descriptor.limit) is not None:
        message.limit.CopyFrom(v1.Limit(requests_per_unit=limit.requests_per_unit, unit=Unit(limit.unit).name))
    return message


def _limit_status_of(limit: v1.LimitStatus) -> LimitStatus:
    return LimitStatus(
        descriptor=limit.descriptor_index,
        rule=limit.rule,
        requests_per_unit=limit.requests_per_unit,
        unit=Unit(limit.unit),
        remaining=limit.remaining,
        reset_after=_seconds(limit.reset_after),
        retry_after=_present_seconds(limit, "retry_after"),
        refused=limit.refused,
        refused_in_shadow=limit.refused_in_shadow,
        refused_by_candidate=limit.refused_by_candidate,
        degraded=limit.degraded,
    )


def _limit_result_of(result: v1.LimitResult) -> LimitResult:
    error = None
    if result.HasField("error"):
        code = CODES.get(result.error.code, grpc.StatusCode.UNKNOWN)
        error = LimitError(code, reason_of(result.error), result.error.message)
    return LimitResult(result.limit if result.HasField("limit") else None, result.rule, error)


def reason_of(status: status_pb2.Status) -> str:
    """The reason in the details of an error; empty if there is none. Raises `DecodeError`."""
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            reason: str = info.reason
            return reason
    return ""


def _settled_limit_of(limit: v1.SettledLimit) -> SettledLimit:
    return SettledLimit(
        descriptor=limit.descriptor_index,
        rule=limit.rule,
        outcome=SettledOutcome(limit.outcome),
        reserved=limit.reserved,
        not_charged=limit.not_charged,
        remaining=limit.remaining,
        reset_after=_seconds(limit.reset_after),
    )


def _present_seconds(message: Message, field: str) -> float | None:
    return _seconds(getattr(message, field)) if message.HasField(field) else None


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9
