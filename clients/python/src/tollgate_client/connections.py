"""A channel to each address of the server's name. The channels take calls in turn."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import status_pb2

from .model import NoAnswerError
from .v1.tollgate_pb2_grpc import RateLimiterStub
from .wire import reason_of

CLOSED = "the client is closed"
CHANNEL_OPTIONS = [
    # By default gRPC waits up to two minutes before it reconnects.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Detects a peer that disappeared without closing the connection.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    # Also without calls, so that the first one after a pause does not wait for a dead connection. By default gRPC stops
    # after two pings without data.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Answers are larger than their requests.
    ("grpc.max_receive_message_length", 32 << 20),
]
# Further addresses of a name take no calls.
ADDRESSES_MAX = 256
# Seconds between lookups of the name, and of one with an address that is not connected.
LOOKUP_INTERVAL = 30.0
LOOKUP_RETRY = 1.0
# The longest call, in seconds. A channel whose address has gone ends its calls first.
CALL_MAX = 60.0
# Names that gRPC resolves by itself, and balances if they have several addresses.
OTHER_SCHEMES = ("unix", "unix-abstract", "vsock", "xds")
ROUND_ROBIN = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
NOTHING_CHARGED = ("NO_RULES", "JOINING")
# What gRPC says of a call that it has not sent.
NOT_CONNECTED = "failed to connect to all addresses"

READY = grpc.ChannelConnectivity.READY
FAILED = grpc.ChannelConnectivity.TRANSIENT_FAILURE

Metadata = tuple[tuple[str, str], ...]


class Connections:
    """Belongs to the loop that runs when it is made."""

    def __init__(self, target: str, credentials: grpc.ChannelCredentials | None) -> None:
        self._target = target
        self._credentials = credentials
        self._channels: dict[str, _Channel] = {}
        # Why the name has no addresses.
        self._failure: str | None = None
        self._turn = 0
        # Set when the state of a channel may have changed.
        self._changed = asyncio.Event()
        self._closed = False
        self._tasks = {asyncio.create_task(self._look_up())}

    async def call(self, method: str, message: Any, deadline: float, metadata: Metadata = ()) -> Any:
        """The reply to a call that ends at this instant of the loop. A call that has charged nothing is repeated once,
        if another address is connected. Raises `grpc.aio.AioRpcError`, `TimeoutError` or `NoAnswerError`."""
        async with asyncio.timeout_at(deadline):
            channel = await self._next()
        try:
            return await channel.call(method, message, deadline, metadata)
        except grpc.aio.AioRpcError as error:
            if not _has_charged_nothing(error) or (other := self._pick(channel)) is None:
                raise
        return await other.call(method, message, deadline, metadata)

    async def close(self) -> None:
        """Ends the calls under way."""
        self._closed = True
        self._changed.set()
        for task in self._tasks:
            task.cancel()
        for channel in self._channels.values():
            await channel.close()

    async def _next(self) -> _Channel:
        """The channel whose turn it is. Waits while none is connected yet."""
        while not self._closed:
            if (channel := self._pick()) is not None:
                return channel
            if self._channels and all(channel.state is FAILED for channel in self._channels.values()):
                # The call fails at once, and says why.
                return next(iter(self._channels.values()))
            if not self._channels and self._failure is not None:
                raise NoAnswerError(grpc.StatusCode.UNAVAILABLE, self._failure)
            self._changed.clear()
            await self._changed.wait()
        raise NoAnswerError(grpc.StatusCode.CANCELLED, CLOSED)

    def _pick(self, avoided: _Channel | None = None) -> _Channel | None:
        """A connected channel in turn."""
        connected = [each for each in self._channels.values() if each.state is READY and each is not avoided]
        self._turn += 1
        return connected[self._turn % len(connected)] if connected else None

    async def _look_up(self) -> None:
        """Keeps a channel to each address."""
        now = asyncio.get_running_loop().time
        while True:
            try:
                addresses, authority = await _addresses_of(self._target)
                await self._use(addresses, authority)
            except (OSError, UnicodeError) as error:
                # The addresses that are known stay.
                self._failure = f"{self._target}: {error}"
            self._changed.set()
            done = now()
            await asyncio.sleep(LOOKUP_RETRY)
            while now() < done + LOOKUP_INTERVAL and all(each.state is READY for each in self._channels.values()):
                await asyncio.sleep(LOOKUP_RETRY)

    async def _use(self, addresses: list[str], authority: str | None) -> None:
        named = ("grpc.default_authority", authority) if authority else ("grpc.service_config", ROUND_ROBIN)
        options = [*CHANNEL_OPTIONS, named]
        for address in addresses:
            if address not in self._channels and len(self._channels) < ADDRESSES_MAX:
                self._channels[address] = _Channel(address, self._credentials, options, self._changed.set)
        for gone in self._channels.keys() - set(addresses):
            closing = asyncio.create_task(self._channels.pop(gone).close(CALL_MAX))
            self._tasks.add(closing)
            closing.add_done_callback(self._tasks.discard)


class _Channel:
    """A channel to one address, which stays connected."""

    def __init__(
        self,
        address: str,
        credentials: grpc.ChannelCredentials | None,
        options: list[tuple[str, Any]],
        on_change: Callable[[], None],
    ) -> None:
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options)
        else:
            self._channel = grpc.aio.secure_channel(address, credentials, options)
        self._stub = RateLimiterStub(self._channel)
        self._on_change = on_change
        self.state = self._channel.get_state(try_to_connect=True)
        self._watch = asyncio.create_task(self._watch_state())

    async def call(self, method: str, message: Any, deadline: float, metadata: Metadata) -> Any:
        timeout = deadline - asyncio.get_running_loop().time()
        return await getattr(self._stub, method)(message, timeout=timeout, metadata=metadata)

    async def close(self, grace: float | None = None) -> None:
        self._watch.cancel()
        await self._channel.close(grace)

    async def _watch_state(self) -> None:
        while True:
            await self._channel.wait_for_state_change(self.state)
            self.state = self._channel.get_state(try_to_connect=True)
            self._on_change()


async def _addresses_of(target: str) -> tuple[list[str], str | None]:
    """The addresses of a name in gRPC's form, and the authority of calls if gRPC does not know it. Raises `OSError` or
    `UnicodeError`."""
    scheme, _, rest = target.partition(":")
    if scheme in OTHER_SCHEMES or rest.startswith("//") and not rest.startswith("///"):
        return [target], None
    if scheme in ("ipv4", "ipv6"):
        addresses = rest.split(",")
        return [f"{scheme}:{address}" for address in addresses], addresses[0]
    name = rest.removeprefix("///") if scheme == "dns" else target
    host, _, port = name.rpartition(":")
    # Without a port, it is that of gRPC.
    host, port = (host.strip("[]"), port) if host else (name, "443")
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(_in_form_of_grpc(family, address) for family, _, _, _, address in found)), name


def _in_form_of_grpc(family: socket.AddressFamily, address: tuple[Any, ...]) -> str:
    host, port = address[:2]
    return f"ipv6:[{host}]:{port}" if family is socket.AF_INET6 else f"ipv4:{host}:{port}"


def _has_charged_nothing(error: grpc.aio.AioRpcError) -> bool:
    """Whether a call was not sent, or a replica has answered that it decides no calls yet."""
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return False
    return (error.details() or "").startswith(NOT_CONNECTED) or _reason_of(error) in NOTHING_CHARGED


def _reason_of(error: grpc.aio.AioRpcError) -> str:
    """The reason in the details of an error; empty if there is none, or if they cannot be read."""
    encoded = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    with contextlib.suppress(DecodeError):
        return reason_of(status_pb2.Status.FromString(encoded))
    return ""
