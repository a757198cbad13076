"""Rate limits from Tollgate for asyncio services.

`Client` asks a server whether requests may pass, and reserves hits. `PrepaidSlices` spends reserved parts of limits
without calls. `RateLimitMiddleware` limits the requests of an ASGI application, `RateLimitInterceptor` those of a
`grpc.aio` server.
"""

from .asgi import RateLimitMiddleware
from .checker import Checker
from .client import Client
from .interceptor import RateLimitInterceptor
from .metrics import Counts, Metrics, Outcome
from .model import (
    Decision,
    Default,
    Descriptor,
    InvalidRequest,
    Limit,
    LimitStatus,
    NoAnswer,
    OnExpiry,
    Question,
    Reservation,
    SettledLimit,
    SettledOutcome,
    Settlement,
    Source,
    Unit,
)
from .prepaid import PrepaidSlices

__all__ = [
    "Checker",
    "Client",
    "Counts",
    "Decision",
    "Default",
    "Descriptor",
    "InvalidRequest",
    "Limit",
    "LimitStatus",
    "Metrics",
    "NoAnswer",
    "OnExpiry",
    "Outcome",
    "PrepaidSlices",
    "Question",
    "RateLimitInterceptor",
    "RateLimitMiddleware",
    "Reservation",
    "SettledLimit",
    "SettledOutcome",
    "Settlement",
    "Source",
    "Unit",
]
