"""Limits the requests of an ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from . import headers
from .checker import Checker
from .model import Decision, Question

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RateLimitMiddleware:
    """Answers 429 to refused HTTP requests, and adds `RateLimit-*` headers to the answers of the others.

    `client` decides: a `Client`, or `PrepaidSlices`. `question` says what the request of a scope asks. A request for
    which it returns None is not limited; neither are WebSockets.
    """

    def __init__(self, app: App, client: Checker, question: Callable[[Scope], Question | None]) -> None:
        self._app = app
        self._client = client
        self._question = question

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        question = self._question(scope) if scope["type"] == "http" else None
        if question is None:
            await self._app(scope, receive, send)
            return
        decision = await self._client.ask(question)
        if not decision.allowed:
            fields = [(b"content-length", b"0"), *_fields(decision)]
            await send({"type": "http.response.start", "status": 429, "headers": fields})
            await send({"type": "http.response.body", "body": b""})
            return
        if decision.delay > 0:
            await asyncio.sleep(decision.delay)
        await self._app(scope, receive, _with_fields(send, _fields(decision)))


def _with_fields(send: Send, fields: list[tuple[bytes, bytes]]) -> Send:
    names = {name for name, _ in fields}

    async def send_with_fields(message: Message) -> None:
        if message["type"] == "http.response.start":
            others = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in names]
            message = {**message, "headers": [*others, *fields]}
        await send(message)

    return send_with_fields


def _fields(decision: Decision) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.of(decision)]
