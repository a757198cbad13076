"""Rate limits from Tollgate for asyncio services.

`Client` asks a server whether requests may pass, and reserves hits. `PrepaidSlices` spends reserved parts of limits
without calls. `RateLimitMiddleware` limits the requests of an ASGI application, `RateLimitInterceptor` those of a
`grpc.aio` server.
"""

from .asgi import RateLimitMiddleware
from .checker import Checker
from .client import Client
from .headers import refusal
from .interceptor import RateLimitInterceptor
from .metrics import Metrics, Outcome
from .model import (
    Decision,
    Descriptor,
    InvalidRequestError,
    Limit,
    LimitError,
    LimitResult,
    LimitStatus,
    NoAnswerError,
    OnExpiry,
    OnNoAnswer,
    Request,
    Reservation,
    SettledLimit,
    SettledOutcome,
    Settlement,
    Source,
    Terms,
    Unit,
)
from .prepaid import PrepaidSlices
from .slice_table import SliceOptions

__all__ = [
    "Checker",
    "Client",
    "Decision",
    "Descriptor",
    "InvalidRequestError",
    "Limit",
    "LimitError",
    "LimitResult",
    "LimitStatus",
    "Metrics",
    "NoAnswerError",
    "OnExpiry",
    "OnNoAnswer",
    "Outcome",
    "PrepaidSlices",
    "RateLimitInterceptor",
    "RateLimitMiddleware",
    "Request",
    "Reservation",
    "SettledLimit",
    "SettledOutcome",
    "Settlement",
    "SliceOptions",
    "Source",
    "Terms",
    "Unit",
    "refusal",
]
