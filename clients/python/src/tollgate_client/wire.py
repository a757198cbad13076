"""Translates between the model and the messages of `tollgate.v1`."""

from __future__ import annotations

import datetime
import hashlib
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import code_pb2

from .model import (
    Decision,
    Descriptor,
    InvalidRequest,
    LimitStatus,
    NoAnswer,
    OnExpiry,
    Question,
    Reservation,
    SettledLimit,
    SettledOutcome,
    Settlement,
    Unit,
)
from .v1 import tollgate_pb2 as v1

# The server reads messages of 4 MiB, which contain a request and its length.
REQUEST_BYTES_MAX = (4 << 20) - 16

M = TypeVar("M", bound=Message)


def request_of(question: Question) -> v1.Request:
    """The request of a check or a refund."""
    return _message(v1.Request, question, hits=_hits(question), request_id=question.request_id)


def peek_request_of(question: Question) -> v1.Request:
    """The request of a peek, which has no hits."""
    return _message(v1.Request, question)


def reserve_request_of(question: Question, ttl: float, on_expiry: OnExpiry, reservation_id: str) -> v1.ReserveRequest:
    """The request that holds the hits of a question."""
    try:
        duration = datetime.timedelta(seconds=ttl)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"ttl: {error}") from error
    return _message(
        v1.ReserveRequest,
        question,
        amount=_hits(question),
        ttl=duration,
        reservation_id=reservation_id,
        on_expiry=on_expiry.name,
    )


def settle_request_of(reservation: Reservation, actual: int) -> v1.SettleRequest:
    """The request that ends a reservation at the hits that were used."""
    return _message(v1.SettleRequest, reservation.question, reservation_id=reservation.id, actual=actual)


def cancel_request_of(reservation: Reservation) -> v1.CancelRequest:
    """The request that gives the hits of a reservation back."""
    return _message(v1.CancelRequest, reservation.question, reservation_id=reservation.id)


def key_of(request: v1.Request | v1.SettleRequest | v1.CancelRequest) -> bytes:
    """Names the counters of a request: a digest of its domain, and of the entries and limits of its descriptors."""
    named = v1.Request(domain=request.domain, descriptors=request.descriptors)
    for descriptor in named.descriptors:
        descriptor.ClearField("hits")
    # Unambiguous, since the message can be read from it. A digest takes little memory, however long the texts are.
    return hashlib.sha256(named.SerializeToString(deterministic=True)).digest()


def hits_of(request: v1.Request) -> tuple[int, ...]:
    """The hits of each descriptor."""
    return tuple(each.hits if each.HasField("hits") else request.hits for each in request.descriptors)


def settlement_of(reply: v1.SettleResponse | v1.CancelResponse) -> Settlement:
    return Settlement(tuple(_settled_limit_of(limit) for limit in reply.limits), reply.unknown)


def decision_of(answer: v1.Answer) -> Decision:
    """Raises `InvalidRequest` or `NoAnswer` if the request was not decided."""
    if answer.verdict not in (v1.Answer.ALLOWED, v1.Answer.DENIED):
        if answer.error.code == code_pb2.INVALID_ARGUMENT:
            raise InvalidRequest(answer.error.message)
        raise NoAnswer(f"{code_pb2.Code.Name(answer.error.code)}: {answer.error.message}")
    return Decision(
        allowed=answer.verdict == v1.Answer.ALLOWED,
        delay=_seconds(answer.delay),
        retry_after=_present_seconds(answer, "retry_after"),
        limits=tuple(_limit_status_of(limit) for limit in answer.limits),
        degraded=answer.degraded,
    )


def _hits(question: Question) -> int:
    # The protocol reads 0 as 1.
    if question.hits == 0:
        raise InvalidRequest("hits must be at least 1; hits of a descriptor may be 0")
    return question.hits


def _message(kind: type[M], question: Question, **fields: object) -> M:
    """A message with the domain and the descriptors of a question, and with these fields."""
    try:
        descriptors = [_descriptor(descriptor) for descriptor in question.descriptors]
        message = kind(domain=question.domain, descriptors=descriptors, **fields)
    except (TypeError, ValueError) as error:
        # A number out of range, text that is no Unicode, or another type.
        raise InvalidRequest(str(error)) from error
    # The server's error for it would lead to the default decision.
    if message.ByteSize() > REQUEST_BYTES_MAX:
        raise InvalidRequest(f"the request has more than {REQUEST_BYTES_MAX} bytes")
    return message


def _descriptor(descriptor: Descriptor) -> v1.Descriptor:
    message = v1.Descriptor(entries=[v1.Entry(key=key, value=value) for key, value in descriptor.entries])
    if descriptor.hits is not None:
        message.hits = descriptor.hits
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
