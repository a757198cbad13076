"""Limits the requests of an ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from . import headers
from .checker import Checker
from .model import Request

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RateLimitMiddleware:
    """Answers 429 to denied HTTP requests, or 503 if the server gave no answer, with the reason, and adds `RateLimit-*`
    headers to all answers.

    `checker` decides: a `Client`, or `PrepaidSlices`. `describe` returns the `Request` of a scope, or None if it has no
    limit. WebSockets are not limited.
    """

    def __init__(self, app: App, checker: Checker, describe: Callable[[Scope], Request | None]) -> None:
        self._app = app
        self._checker = checker
        self._describe = describe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = self._describe(scope) if scope["type"] == "http" else None
        if request is None:
            await self._app(scope, receive, send)
            return
        decision = await self._checker.check(request)
        if not decision.allowed:
            accepted = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"accept"]
            status, fields, text = headers.refusal(decision, ", ".join(accepted))
            body = text.encode()
            encoded = _encoded([("content-length", str(len(body))), *fields])
            await send({"type": "http.response.start", "status": status, "headers": encoded})
            await send({"type": "http.response.body", "body": body})
            return
        if decision.delay > 0:
            await asyncio.sleep(decision.delay)
        await self._app(scope, receive, _with_fields(send, _encoded(headers.of(decision))))


def _with_fields(send: Send, fields: list[tuple[bytes, bytes]]) -> Send:
    names = {name for name, _ in fields}

    async def send_with_fields(message: Message) -> None:
        if message["type"] == "http.response.start":
            others = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in names]
            message = {**message, "headers": [*others, *fields]}
        await send(message)

    return send_with_fields


def _encoded(fields: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in fields]
