"""Limits the requests and the tokens of each user of a language model: `uvicorn --app-dir example llm:app`.

The most tokens that an answer may have are reserved, and settled at the tokens that were sent, also if the caller goes
away.
"""

import asyncio
import contextlib
import logging
import os

from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tollgate_client import Client, Descriptor, NoAnswerError, OnExpiry, OnNoAnswer, Request, Terms, refusal

SENTENCE = ["Limits", " are", " kept", " exactly", ".", "\n"]
# Longer than any answer takes. If this process ends, a reservation stays charged as a whole: some tokens were sent.
TERMS = Terms(600, OnExpiry.CHARGE)
# The time between two tokens.
PACE = float(os.environ.get("MODEL_PACE", "0.1"))


async def model(tokens_max):
    """Stands for a model: the tokens of an answer, as they come."""
    for number, token in enumerate((SENTENCE * 3)[:tokens_max]):
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
                await client.settle(self._reservation, self._sent)
            except NoAnswerError as error:
                logging.warning("the reservation stays charged as a whole: %s", error)

    async def _counted(self, tokens):
        async for token in tokens:
            self._sent += 1
            yield token


async def chat(request):
    tokens_max = request.query_params.get("max_tokens", "500")
    if not tokens_max.isdecimal() or not 1 <= len(tokens_max) <= 9 or int(tokens_max) == 0:
        return Response("max_tokens must be 1 to 999999999\n", status_code=400)
    # A real service takes the user from a verified token: a client that chooses its name chooses its budget.
    user = request.headers.get("x-user", "anonymous")
    descriptors = [Descriptor([("requests", user)], hits=1), Descriptor([("tokens", user)])]
    reservation = await client.reserve(Request("models", descriptors, int(tokens_max)), TERMS)
    if not reservation.decision.allowed:
        try:
            # Holds hits only if the answer was lost, and the default has decided.
            await client.cancel(reservation)
        except NoAnswerError as error:
            logging.warning("the reservation may stay charged: %s", error)
        status, headers = refusal(reservation.decision)
        return Response(status_code=status, headers=dict(headers))
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
