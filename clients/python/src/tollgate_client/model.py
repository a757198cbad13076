"""What a caller asks, and what it is told. Times are in seconds."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections.abc import Iterable

import grpc

from .v1 import tollgate_pb2 as v1

DAY_SECONDS = 86_400.0


def check_range(name: str, value: float, least: float, most: float, error: type[ValueError] = ValueError) -> None:
    """Raises an error that names the option if its value is out of its range."""
    if not least <= value <= most:
        raise error(f"{name} is not from {least} to {most}")


class InvalidRequestError(ValueError):
    """The request cannot be decided, now or later: the program that sent it is to be corrected."""


class NoAnswerError(Exception):
    """The server gave no answer. It may have done what it was asked."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class LimitError(Exception):
    """Why the limit of its own of one key was not read or changed."""

    def __init__(self, code: grpc.StatusCode, reason: str, message: str) -> None:
        super().__init__(code, reason, message)
        self.code = code
        # A name, such as `OUT_OF_BOUNDS` or `OTHER_VERSION`.
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class OnNoAnswer(enum.Enum):
    """The decision if the server does not answer."""

    # For protection against overload: an outage of the limiter must not be an outage of the service.
    ALLOW = "allow"
    # For limits that protect money, logins or secrets.
    DENY = "deny"


class Source(enum.Enum):
    """Where a decision comes from."""

    SERVER = "server"
    # The key was refused earlier, and the time of its retry-after is not over.
    DENY_CACHE = "deny_cache"
    # A prepaid slice.
    PREPAID = "prepaid"
    # The server did not answer.
    DEFAULT = "default"


class Unit(enum.IntEnum):
    """The window of a limit, with the numbers of the protocol."""

    # The window is none of the others. Not valid in a request.
    UNKNOWN = 0
    SECOND = 1
    MINUTE = 2
    HOUR = 3
    DAY = 4
    MONTH = 5
    YEAR = 6
    WEEK = 7

    @classmethod
    def _missing_(cls, value: object) -> Unit:
        # A newer server may know more of them.
        return cls.UNKNOWN


class OnExpiry(enum.Enum):
    """What happens to a reservation that is neither settled nor canceled before it expires."""

    # Its hits are given back.
    RELEASE = "release"
    # Its hits stay charged.
    CHARGE = "charge"


class SettledOutcome(enum.IntEnum):
    """What was known of a reservation when it ended, with the numbers of the protocol."""

    # It was open.
    OPEN = 0
    # It had expired and stayed charged. The charge was adjusted.
    CHARGED = 1
    # It had expired and was released. All hits that were used were charged now.
    RELEASED = 2
    # Nothing. All hits that were used were charged now.
    UNKNOWN = 3

    @classmethod
    def _missing_(cls, value: object) -> SettledOutcome:
        # A newer server may know more of them.
        return cls.UNKNOWN


@dataclasses.dataclass(frozen=True)
class Limit:
    """A limit that the caller sends instead of the one in the rules."""

    requests_per_unit: int
    unit: Unit


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """What is limited: entries of key and value, in the order of the levels of the rules."""

    # A tuple of pairs, once it is made.
    entries: Iterable[tuple[str, str]]
    _: dataclasses.KW_ONLY
    # Replaces the hits of the request for this descriptor; 0 charges nothing and answers what is left.
    hits: int | None = None
    limit: Limit | None = None
    # Replaces that of the terms of a reservation. Other calls ignore it.
    on_expiry: OnExpiry | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", tuple((key, value) for key, value in self.entries))


@dataclasses.dataclass(frozen=True)
class Request:
    """Descriptors of one domain that are decided together."""

    domain: str
    # A tuple, once it is made.
    descriptors: Iterable[Descriptor]
    # The hits of each descriptor without hits of its own. 0 is 1.
    hits: int = 1
    _: dataclasses.KW_ONLY
    # Makes a check or a refund count once: a repeated one of the same descriptors with this id is answered as the first
    # one, for `api.request_id_window` of the server. At most 63 bytes. Other calls leave it out.
    request_id: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "descriptors", tuple(self.descriptors))

    def key(self) -> bytes:
        """Names the counters: a digest of the domain, and of the entries and limits of the descriptors."""
        named = self.domain, [(each.entries, each.limit) for each in self.descriptors]
        # Unambiguous, since texts are quoted. A digest takes little memory, however long the texts are.
        return hashlib.sha256(repr(named).encode()).digest()

    def hits_of_each(self) -> tuple[int, ...]:
        """The hits of each descriptor."""
        return tuple(max(self.hits, 1) if each.hits is None else each.hits for each in self.descriptors)


@dataclasses.dataclass(frozen=True)
class Terms:
    """How hits are held. Raises `InvalidRequestError`."""

    # Seconds until the reservation expires, 1 ms to 24 h.
    ttl: float = 60.0
    # Of each descriptor without its own.
    on_expiry: OnExpiry = OnExpiry.RELEASE

    def __post_init__(self) -> None:
        check_range("ttl", self.ttl, 0.001, DAY_SECONDS, InvalidRequestError)


@dataclasses.dataclass(frozen=True)
class LimitStatus:
    """One limit that applies to a request."""

    # The index of the descriptor in the request.
    descriptor: int
    # The name or the path of the rule; empty for a limit that the caller sent.
    rule: str
    requests_per_unit: int
    unit: Unit
    remaining: int
    # Until the window ends or the bucket is full; if the limit refuses, until the same hits pass, 0 if they never do.
    reset_after: float
    # If the limit refuses: until the same hits pass. None if they never do.
    retry_after: float | None = None
    refused: bool = False
    refused_in_shadow: bool = False
    refused_by_candidate: bool = False
    degraded: bool = False

    def after(self, seconds: float) -> LimitStatus:
        """The same limit this much later, if nothing is charged or given back."""
        return dataclasses.replace(
            self,
            reset_after=max(0.0, self.reset_after - seconds),
            retry_after=_later(self.retry_after, seconds),
        )


@dataclasses.dataclass(frozen=True)
class Decision:
    """What to do with a request."""

    allowed: bool
    source: Source = Source.SERVER
    # The time that an allowed request waits before it goes on.
    delay: float = 0.0
    # The time until a refused request would pass; None if it never would, or if the server did not answer.
    retry_after: float | None = None
    # The limits that apply, in the order of the descriptors.
    limits: tuple[LimitStatus, ...] = ()
    # Whether a limit was decided without the owner of its counter, which could not be reached.
    degraded: bool = False
    # Why the server did not answer.
    no_answer: NoAnswerError | None = None
    # Why a refused request would never pass, with the largest amount that can; empty if it may pass later.
    never_because: str = ""

    def after(self, seconds: float, source: Source) -> Decision:
        """The same decision this much later, from this source."""
        return dataclasses.replace(
            self,
            source=source,
            retry_after=_later(self.retry_after, seconds),
            limits=tuple(limit.after(seconds) for limit in self.limits),
        )

    @property
    def tightest(self) -> LimitStatus | None:
        """The limit to report: of a denied request, those that refuse come first; then the one with the fewest
        remaining hits; of those that refuse, the one with the longest wait."""

        def rank(limit: LimitStatus) -> tuple[bool, int, float]:
            refuses = not self.allowed and limit.refused
            return not refuses, limit.remaining, -limit.reset_after if refuses else 0.0

        return min(self.limits, key=rank, default=None)


@dataclasses.dataclass(frozen=True)
class Reservation:
    """Hits that are held until it is known how many were used."""

    # What was reserved.
    request: Request
    # Whether the request may go on; the default without an answer.
    decision: Decision
    # Empty if nothing is held. Without an answer, the server may hold the hits or not, under this id.
    id: str
    # Whether a reservation of this id was made before and is not open any more. Then nothing is held.
    ended: bool = False


@dataclasses.dataclass(frozen=True)
class SettledLimit:
    """One limit of a reservation that has ended."""

    # The index of the descriptor in the request.
    descriptor: int
    # The name or the path of the rule; empty for a limit that the caller sent.
    rule: str
    outcome: SettledOutcome
    # Hits that the reservation held; 0 if the outcome is RELEASED or UNKNOWN.
    reserved: int
    # Of the hits that were used, those that were not charged because the limit does not go as far.
    not_charged: int
    remaining: int
    # Until the window ends or the bucket is full.
    reset_after: float


@dataclasses.dataclass(frozen=True)
class Settlement:
    """How a reservation has ended."""

    # The limits that apply, in the order of the descriptors; none if nothing was held.
    limits: tuple[SettledLimit, ...] = ()
    # Whether the outcome of a limit is UNKNOWN.
    unknown: bool = False


@dataclasses.dataclass(frozen=True)
class LimitResult:
    """What has become of the limit of its own of one key."""

    # The one that applies now; None if the numbers of the rule do, or if nothing is known.
    limit: v1.OwnLimit | None
    # The name or the path of the rule.
    rule: str
    # Why nothing was read or changed.
    error: LimitError | None = None


def _later(wait: float | None, seconds: float) -> float | None:
    return None if wait is None else max(0.0, wait - seconds)
