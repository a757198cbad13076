"""Translates between the model and the messages of `tollgate.v1`."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import code_pb2

from .model import Decision, Descriptor, InvalidRequest, LimitStatus, NoAnswer, Question, Unit
from .v1 import tollgate_pb2 as v1

# The server reads messages of 4 MiB, which contain a request and its length.
REQUEST_BYTES_MAX = (4 << 20) - 16


def request_of(question: Question) -> v1.Request:
    """The request of a check or a refund."""
    # The protocol reads 0 as 1.
    if question.hits == 0:
        raise InvalidRequest("hits must be at least 1; hits of a descriptor may be 0")
    return _request(question, question.hits)


def peek_request_of(question: Question) -> v1.Request:
    """The request of a peek, which has no hits."""
    return _request(question, 0)


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


def _request(question: Question, hits: int) -> v1.Request:
    try:
        descriptors = [_descriptor(descriptor) for descriptor in question.descriptors]
        request = v1.Request(domain=question.domain, descriptors=descriptors, hits=hits)
    except (TypeError, ValueError) as error:
        # A number out of range, text that is no Unicode, or another type.
        raise InvalidRequest(str(error)) from error
    # The server's error for it would lead to the default decision.
    if request.ByteSize() > REQUEST_BYTES_MAX:
        raise InvalidRequest(f"the request has more than {REQUEST_BYTES_MAX} bytes")
    return request


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


def _present_seconds(message: Message, field: str) -> float | None:
    return _seconds(getattr(message, field)) if message.HasField(field) else None


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9
