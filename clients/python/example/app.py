"""An ASGI application whose requests are limited for each user: `uvicorn --app-dir example app:app`."""

import contextlib
import os

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tollgate_client import Client, Descriptor, RateLimitMiddleware, Request


def describe(scope):
    """One hit of the user of a request."""
    if scope["path"] == "/health":
        return None
    # A real service takes the user from a verified token: a client that chooses its name chooses its budget.
    user = Headers(scope=scope).get("user", "anonymous")
    return Request("edge", [Descriptor([("user", user)])])


async def hello(request):
    return PlainTextResponse(f"hello {request.headers.get('user', 'anonymous')}\n")


async def health(_request):
    return PlainTextResponse("ok\n")


@contextlib.asynccontextmanager
async def lifespan(_app):
    async with client:
        yield


client = Client(
    os.environ.get("TOLLGATE_TARGET", "127.0.0.1:8081"), timeout=float(os.environ.get("TOLLGATE_TIMEOUT", "0.1"))
)
app = Starlette(
    routes=[Route("/", hello), Route("/health", health)],
    middleware=[Middleware(RateLimitMiddleware, checker=client, describe=describe)],
    lifespan=lifespan,
)
