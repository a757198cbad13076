import asyncio
import contextlib
import socket

import pytest
import uvicorn

from server import LOOPBACK, Server, eventually
from tollgate_client import Client
from vectors import Counts

RULES = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 3, algorithm: sliding_log}
  - key: many
    rate_limit: {unit: hour, requests_per_unit: 1000, algorithm: sliding_log}
  - key: group
    rate_limit: {unit: hour, requests_per_unit: 10, algorithm: sliding_log}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}
  - key: candidate
    rate_limit:
      {unit: hour, requests_per_unit: 9, candidate: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}}
"""


@pytest.fixture
async def start_server():
    """Starts servers, and stops them at the end."""
    with contextlib.ExitStack() as stack:

        async def start(rules=RULES, flags=()):
            return stack.enter_context(contextlib.closing(Server(rules, *flags)))

        yield start


@pytest.fixture
async def server(start_server):
    return await start_server()


@pytest.fixture
async def make_client():
    """Makes clients, and closes them at the end. The timeout is long, so that a busy machine is no outage."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(target, **settings):
            return await stack.enter_async_context(Client(target, **{"timeout": 10.0, **settings}))

        yield make


@pytest.fixture
async def counts():
    return Counts()


@pytest.fixture
async def client(server, make_client, counts):
    return await make_client(server.address, metrics=counts)


@pytest.fixture
async def serve():
    """Serves ASGI applications until the end, and returns their ports."""
    running = []

    async def start(app):
        listener = socket.create_server((LOOPBACK, 0))
        served = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        running.append((served, asyncio.create_task(served.serve([listener]))))
        await eventually("uvicorn has started", lambda: served.started)
        return listener.getsockname()[1]

    yield start
    for served, task in running:
        served.should_exit = True
        await task
