"""A gRPC client like Envoy's, for single or concurrent calls, without retries."""

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
# The timeout of a caller. Half of it is more than the default of `cluster.forward_budget_max`, which so applies.
TIMEOUT = 2.0
CHANNEL_OPTIONS = [
    ("grpc.enable_retries", 0),
    # The default authority of a Unix socket is its path, which an HTTP/2 server need not accept.
    ("grpc.default_authority", "localhost"),
    # Each channel has its own connections.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
]


@functools.cache
def _pool():
    """The messages of Envoy, generated from the proto files."""
    proto = ROOT / "proto"
    known = importlib.resources.files("grpc_tools") / "_proto"
    files = sorted(str(path) for path in (proto / "envoy").rglob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder) / "set"
        where = [f"-I{proto}", f"-I{known}", "--include_imports", f"--descriptor_set_out={made}"]
        assert protoc.main(["", *where, *files]) == 0, "the proto files cannot be compiled"
        # A separate pool, because generated modules would conflict with another package named `envoy`.
        pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file:
            pool.Add(file)
    return pool


@functools.cache
def message_class(name):
    """The class of a message of Envoy's services, by its name below `envoy.service`."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"envoy.service.{name}"))


@dataclasses.dataclass(frozen=True)
class Response:
    """A response, or the name of the gRPC error in `error`."""

    passes: bool = False
    # One item per descriptor.
    remaining: tuple = ()
    passed_each: tuple = ()
    reset_seconds: tuple = ()
    degraded: bool = False
    error: str | None = None
    seconds: float = 0.0


def rate_limit_request(*descriptors, hits=0, domain="edge"):
    """A request with descriptors made by `descriptor`."""
    return message_class("ratelimit.v3.RateLimitRequest")(domain=domain, descriptors=descriptors, hits_addend=hits)


def descriptor(*entries, hits=None, refund=False, override=None):
    """A descriptor of (key, value) pairs; `override` is a limit and the number of its unit."""
    descriptor = {"entries": [{"key": key, "value": value} for key, value in entries]}
    if hits is not None:
        descriptor["hits_addend"] = {"value": hits}
    if refund:
        descriptor["is_negative_hits"] = True
    if override:
        descriptor["limit"] = {"requests_per_unit": override[0], "unit": override[1]}
    return descriptor


def field(number, value):
    """An encoded field of a message: bytes, or a number."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(number):
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _read(response, seconds):
    statuses = response.statuses
    ok = response.DESCRIPTOR.enum_types_by_name["Code"].values_by_name["OK"].number
    return Response(
        passes=response.overall_code == ok,
        remaining=tuple(status.limit_remaining for status in statuses),
        passed_each=tuple(status.code == ok for status in statuses),
        reset_seconds=tuple(status.duration_until_reset.seconds for status in statuses),
        degraded="degraded" in response.dynamic_metadata.fields,
        seconds=seconds,
    )


class Callers:
    """Calls from a separate event loop, over one connection per address."""

    options = CHANNEL_OPTIONS

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.channels = {}
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    @classmethod
    def on_this_loop(cls, options=()):
        """A caller for `call_async` only, on the running event loop. `close` closes its connections."""
        caller = cls.__new__(cls)
        caller.loop, caller.channels, caller.thread = asyncio.get_running_loop(), {}, None
        caller.options = [*CHANNEL_OPTIONS, *options]
        return caller

    async def close(self):
        for channel, _ in self.channels.values():
            await channel.close()

    def stop(self):
        self.run(self.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def run(self, work, timeout=120.0):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def call(self, to, *descriptors, hits=0, timeout=TIMEOUT):
        """Sends one call to an address."""
        return self.run(self.call_async(to, rate_limit_request(*descriptors, hits=hits), timeout))

    def call_all(self, calls, concurrency=32, timeout=TIMEOUT):
        """The responses to (address, request) pairs in order, with at most `concurrency` calls at a time."""

        async def all_of_them():
            semaphore = asyncio.Semaphore(concurrency)

            async def one(to, request):
                async with semaphore:
                    return await self.call_async(to, request, timeout)

            return await asyncio.gather(*(one(to, request) for to, request in calls))

        return self.run(all_of_them())

    async def call_async(self, to, request, timeout=TIMEOUT):
        started = time.monotonic()
        try:
            response = await self._method(to)(request, timeout=timeout, wait_for_ready=False)
        except grpc.aio.AioRpcError as error:
            return Response(error=f"{error.code().name}: {error.details()}", seconds=time.monotonic() - started)
        return _read(response, time.monotonic() - started)

    def _method(self, to):
        if to not in self.channels:
            request, response = (message_class(f"ratelimit.v3.RateLimit{kind}") for kind in ("Request", "Response"))
            channel = grpc.aio.insecure_channel(to, options=self.options)
            method = channel.unary_unary(METHOD, request.SerializeToString, response.FromString)
            self.channels[to] = channel, method
        return self.channels[to][1]
