"""Keeps four limits of each user of a language model: `uvicorn --app-dir example llm:app`.

A reservation holds one request, the most tokens that the answer may have, and a place in flight. Its settlement frees
the place, and charges the tokens that were sent, also if the caller goes away.
"""

import asyncio
import contextlib
import itertools
import logging
import os

from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tollgate_client import Client, Descriptor, NoAnswerError, OnExpiry, OnNoAnswer, Request, Terms, refusal

# Longer than any answer takes. If this process ends before, the place is free again, and the rest stays charged.
TERMS = Terms(600, OnExpiry.CHARGE)
# The index of the descriptor of calls in flight.
IN_FLIGHT = 3
# The time between two tokens.
PACE = float(os.environ.get("MODEL_PACE", "0.05"))


async def model(tokens_max):
    """Stands for a language model: the tokens of an answer, as they come."""
    sentence = ("Limits", " are", " kept", " exactly", ".", "\n")
    for number, token in enumerate(itertools.islice(sentence * 3, tokens_max)):
        if number > 0:
            await asyncio.sleep(PACE)
        yield token


class MeteredResponse(StreamingResponse):
    """Streams tokens, and settles the reservation at their number."""

    def __init__(self, tokens, reservation):
        super().__init__(self._counted(tokens), media_type="text/plain")
        self._reservation = reservation
        self._sent = 0

    async def __call__(self, scope, receive, send):
        # Not in the generator: if the caller goes away before the first token, that never runs.
        try:
            await super().__call__(scope, receive, send)
        finally:
            try:
                # One request as reserved, the tokens that were sent, and no place.
                await client.settle(self._reservation, self._sent, {IN_FLIGHT: 0})
            except NoAnswerError as error:
                logging.warning("the reservation is held until it expires: %s", error)

    async def _counted(self, tokens):
        async for token in tokens:
            self._sent += 1
            yield token


async def chat(request):
    tokens_max = request.query_params.get("max_tokens", "500")
    if not tokens_max.isdecimal() or not 1 <= len(tokens_max) <= 9 or int(tokens_max) == 0:
        return Response("max_tokens must be 1 to 999999999\n", status_code=400)
    # A real service takes the user from a verified token: a client that chooses its name chooses its budget.
    user = request.headers.get("user", "anonymous")
    descriptors = [
        Descriptor([("requests", user)], hits=1),
        Descriptor([("tokens", user)]),
        Descriptor([("tokens_of_month", user)]),
        Descriptor([("in_flight", user)], hits=1, on_expiry=OnExpiry.RELEASE),
    ]
    reservation = await client.reserve(Request("models", descriptors, int(tokens_max)), TERMS)
    if not reservation.decision.allowed:
        try:
            # Holds hits only if the answer was lost, and the default has decided.
            await client.cancel(reservation)
        except NoAnswerError as error:
            logging.warning("the reservation may be held until it expires: %s", error)
        status, headers, body = refusal(reservation.decision, request.headers.get("accept", ""))
        return Response(body, status_code=status, headers=dict(headers))
    return MeteredResponse(model(int(tokens_max)), reservation)


@contextlib.asynccontextmanager
async def lifespan(_app):
    async with client:
        yield


client = Client(
    os.environ.get("TOLLGATE_TARGET", "127.0.0.1:8081"),
    timeout=float(os.environ.get("TOLLGATE_TIMEOUT", "0.1")),
    # Tokens cost money.
    on_no_answer=OnNoAnswer.DENY,
)
app = Starlette(routes=[Route("/chat", chat)], lifespan=lifespan)
