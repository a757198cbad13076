"""Asks over gRPC as Envoy does, one call or many at a time; nothing is ever asked twice."""

import asyncio
import dataclasses
import functools
import importlib.resources
import pathlib
import tempfile
import threading
import time

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

from processes import ROOT

METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
# Long, because most tests ask what is decided and not how soon.
TIMEOUT = 10.0
CHANNEL_OPTIONS = [
    ("grpc.enable_retries", 0),
    # By itself it names a Unix socket by its path, which no server of HTTP/2 has to accept as an authority.
    ("grpc.default_authority", "localhost"),
    # Each channel has connections of its own.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
]


@functools.cache
def _messages():
    """The classes of a question and of an answer, made from the protocol's files."""
    proto = ROOT / "proto"
    known = importlib.resources.files("grpc_tools") / "_proto"
    files = sorted(str(path) for path in (proto / "envoy").rglob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder) / "set"
        where = [f"-I{proto}", f"-I{known}", "--include_imports", f"--descriptor_set_out={made}"]
        assert protoc.main(["", *where, *files]) == 0, "the protocol's files are not understood"
        # A pool of its own: another package named `envoy` would be in the way of generated modules.
        pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file:
            pool.Add(file)
    names = ("RateLimitRequest", "RateLimitResponse")
    found = (pool.FindMessageTypeByName(f"envoy.service.ratelimit.v3.{name}") for name in names)
    return tuple(message_factory.GetMessageClass(one) for one in found)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What was answered, or the name of the gRPC error in `error`."""

    passes: bool = False
    # Of each descriptor.
    remaining: tuple = ()
    passed_each: tuple = ()
    reset_seconds: tuple = ()
    degraded: bool = False
    error: str | None = None
    seconds: float = 0.0


def question(*descriptors, hits=0, domain="edge"):
    """A request about descriptors, each of which is made by `by`."""
    return _messages()[0](domain=domain, descriptors=descriptors, hits_addend=hits)


def by(*entries, hits=None, refund=False, override=None):
    """A descriptor of (key, value) pairs; `override` is hits and the number of their unit."""
    descriptor = {"entries": [{"key": key, "value": value} for key, value in entries]}
    if hits is not None:
        descriptor["hits_addend"] = {"value": hits}
    if refund:
        descriptor["is_negative_hits"] = True
    if override:
        descriptor["limit"] = {"requests_per_unit": override[0], "unit": override[1]}
    return descriptor


def _read(response, seconds):
    statuses = response.statuses
    ok = response.DESCRIPTOR.enum_types_by_name["Code"].values_by_name["OK"].number
    return Answer(
        passes=response.overall_code == ok,
        remaining=tuple(status.limit_remaining for status in statuses),
        passed_each=tuple(status.code == ok for status in statuses),
        reset_seconds=tuple(status.duration_until_reset.seconds for status in statuses),
        degraded="degraded" in response.dynamic_metadata.fields,
        seconds=seconds,
    )


class Callers:
    """Calls from an event loop of its own, over one connection to each address."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.channels = {}
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def stop(self):
        async def close():
            for channel, _ in self.channels.values():
                await channel.close()

        self.run(close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def run(self, work, patience=120.0):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(patience)

    def ask(self, to, *descriptors, hits=0, timeout=TIMEOUT):
        """One call to an address."""
        return self.run(self.call(to, question(*descriptors, hits=hits), timeout))

    def ask_all(self, calls, at_once=32, timeout=TIMEOUT):
        """The answers to (address, question) pairs, in their order, so many of them at a time."""

        async def all_of_them():
            gate = asyncio.Semaphore(at_once)

            async def one(to, asked):
                async with gate:
                    return await self.call(to, asked, timeout)

            return await asyncio.gather(*(one(to, asked) for to, asked in calls))

        return self.run(all_of_them())

    async def call(self, to, asked, timeout=TIMEOUT):
        began = time.monotonic()
        try:
            response = await self._method(to)(asked, timeout=timeout, wait_for_ready=False)
        except grpc.aio.AioRpcError as error:
            return Answer(error=f"{error.code().name}: {error.details()}", seconds=time.monotonic() - began)
        return _read(response, time.monotonic() - began)

    def _method(self, to):
        if to not in self.channels:
            request, response = _messages()
            channel = grpc.aio.insecure_channel(to, options=CHANNEL_OPTIONS)
            method = channel.unary_unary(METHOD, request.SerializeToString, response.FromString)
            self.channels[to] = channel, method
        return self.channels[to][1]
