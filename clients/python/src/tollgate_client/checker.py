"""What decides the requests of a service."""

from __future__ import annotations

from typing import Protocol

from .model import Decision, Request


class Checker(Protocol):
    """Decides requests: a `Client`, `PrepaidSlices`, or any other class with this method."""

    async def check(self, request: Request) -> Decision:
        """Charges the hits, and decides whether the request may pass. Raises `InvalidRequestError`."""
