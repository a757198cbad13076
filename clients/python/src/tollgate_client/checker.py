"""What decides the requests of a service."""

from __future__ import annotations

from typing import Protocol

from .model import Decision, Question


class Checker(Protocol):
    """Decides questions: a `Client`, `PrepaidSlices`, or any other class with this method."""

    async def ask(self, question: Question) -> Decision:
        """Charges the hits, and decides whether the request may pass. Raises `InvalidRequest`."""
