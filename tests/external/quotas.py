"""Clients of Envoys that decide by themselves, and what may pass at them."""

import asyncio
import bisect
import collections
import contextlib
import json
import threading
import time

import grpc

from processes import ROOT, eventually
from rls import CHANNEL_OPTIONS, field, message_class

METHOD = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas"
RULES = ROOT / "deploy" / "rules" / "quotas.yaml"
RATE, BURST = 100, 20
# A budget in a window of so many seconds by the clock: shorter than that of the deployed rules. The demands of tests use
# it up in a quarter of the window, because two reports of 5 s prove what is left of slices.
BUDGET, WINDOW = 60, 15
# A budget whose window is longer than a restart, or a roll of a cluster.
LONG_BUDGET, LONG_WINDOW_MIN = 500, 38
# What an earlier process may have assigned is over after this time.
LEARNING_SECONDS = 16
# A client notices a response late on a busy machine.
LATE = 0.1


class OpenLoop:
    """Clients that send at their rates, whatever the responses. `rates` may change at any time."""

    CONNECTIONS_MAX = 16

    def __init__(self, envoys, tenant):
        self.envoys, self.tenant = envoys, tenant
        self.rates = [0] * len(envoys)
        self.passed = []
        self.codes = [collections.Counter() for _ in envoys]
        self.is_stopped = False
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.thread.start()

    def stop(self):
        self.is_stopped = True
        self.thread.join(10)

    async def _run(self):
        await asyncio.gather(*(self._client(index) for index in range(len(self.envoys))))

    async def _client(self, index):
        idle, calls, due, before = [], set(), 0.0, time.monotonic()
        while not self.is_stopped:
            await asyncio.sleep(0.004)
            now = time.monotonic()
            due, before = due + self.rates[index] * (now - before), now
            while due >= 1:
                due -= 1
                if len(calls) < self.CONNECTIONS_MAX:
                    call = asyncio.ensure_future(self._call(index, idle))
                    calls.add(call)
                    call.add_done_callback(calls.discard)
        for call in calls:
            call.cancel()

    async def _call(self, index, idle):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            host, port = self.envoys[index].address.split(":")
            reader, writer = idle.pop() if idle else await asyncio.open_connection(host, int(port))
            writer.write(f"GET / HTTP/1.1\r\nhost: edge\r\nx-tenant: {self.tenant}\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            code, at = int(head.split()[1]), time.time()
            length = int(head.split("content-length: ")[1].split()[0]) if "content-length" in head else 0
            await reader.readexactly(length)
            idle.append((reader, writer))
            self.codes[index][code] += 1
            if code == 200:
                self.passed.append(at)


class Calls:
    """Callers that ask for each request of a tenant over JSON, whatever the answers. `tollgate` may be replaced."""

    def __init__(self, tollgate, tenant, rate):
        self.tollgate, self.interval = tollgate, 1 / rate
        descriptor = {"entries": [{"key": "tenant", "value": tenant}]}
        self.body = json.dumps({"domain": "quotas", "descriptors": [descriptor]})
        self.passed = []
        self.is_stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def stop(self):
        self.is_stopped.set()
        self.thread.join(10)

    def _run(self):
        due = time.monotonic()
        while not self.is_stopped.wait(max(0, due - time.monotonic())):
            due += self.interval
            with contextlib.suppress(OSError):
                tollgate = self.tollgate
                answer = tollgate.call(tollgate.http, "/json", "POST", {"content-type": "application/json"}, self.body)
                if answer.code == 200:
                    self.passed.append(time.time())


def most_in(passed, seconds):
    """The most that passed in any span of this length."""
    times = sorted(passed)
    return max((bisect.bisect_left(times, at + seconds) - index for index, at in enumerate(times)), default=0)


def most_beyond(passed, rate):
    """The most that passed in any time beyond what the rate allows in that time: at most the burst."""
    least, most = float("inf"), 0.0
    for index, at in enumerate(sorted(passed)):
        least = min(least, index - rate * at)
        most = max(most, index + 1 - rate * at - least)
    return most


def passed_between(passed, begin, end):
    return sum(begin <= at < end for at in passed)


def assert_within_rate(passed, envoys, late=0):
    most = {seconds: most_in(passed, seconds) for seconds in (1, 5, 10)}
    print(f"most in 1, 5, 10 s: {most}")
    for seconds, number in most.items():
        # One for each Envoy whose part of the burst is below one.
        assert number <= BURST + RATE * (seconds + LATE) + envoys + late, most


def rules_with_tenants(long_window):
    """The deployed rules, with further tenants: budgets, large bursts, and rates that have turns."""
    return RULES.read_text() + f"""
  - {{key: tenant, value: sprint, rate_limit: {{window: {WINDOW}s, requests_per_unit: {BUDGET}, algorithm: fixed_window}}}}
  - {{key: tenant, value: long, rate_limit: {{window: {long_window}s, requests_per_unit: {LONG_BUDGET}, algorithm: fixed_window}}}}
  - {{key: tenant, value: idle, rate_limit: {{unit: minute, requests_per_unit: 300, algorithm: token_bucket, burst: 300}}}}
  - {{key: tenant, value: callers, rate_limit: {{unit: minute, requests_per_unit: 300, algorithm: token_bucket, burst: 300}}}}
  - {{key: tenant, value: next, rate_limit: {{unit: minute, requests_per_unit: 300, algorithm: token_bucket, burst: 300}}}}
  - {{key: tenant, value: two, rate_limit: {{unit: second, requests_per_unit: 2, algorithm: token_bucket, burst: 2}}}}
"""


def rules_and_long_window(begins_in):
    """The rules, and the length of their long window in seconds. With this length the first window that begins after
    `begins_in` seconds ends soonest."""
    begin = time.time() + begins_in
    window = min(range(LONG_WINDOW_MIN, 2 * LONG_WINDOW_MIN), key=lambda length: -begin % length + length)
    return rules_with_tenants(window), window


def next_window(window=WINDOW):
    """Waits until a window of so many seconds begins; returns when that was."""
    begin = (time.time() // window + 1) * window
    return seconds_pass(begin - time.time(), time.time())


def seconds_pass(seconds, since=None):
    until = (time.time() if since is None else since) + seconds
    eventually(f"{seconds} s", lambda: time.time() >= until, timeout=seconds + 1 if since is None else 130)
    return until


class ReportClient:
    """Streams of reports over one connection, on the running event loop. Messages are bytes, made by `reports`."""

    def __init__(self, address):
        self.channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        response = message_class("rate_limit_quota.v3.RateLimitQuotaResponse")
        self.method = self.channel.stream_stream(METHOD, response_deserializer=response.FromString)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()

    async def close(self):
        await self.channel.close()

    def open(self):
        return ReportStream(self.method())


class ReportStream:
    """A stream of reports, whose responses are read as they come."""

    def __init__(self, call):
        self.call = call
        # The number of actions so far, and the name of the error that has ended the stream.
        self.actions, self.error = 0, None
        self.reading = asyncio.ensure_future(self._read())

    async def _read(self):
        try:
            async for response in self.call:
                self.actions += len(response.bucket_action)
        except grpc.aio.AioRpcError as error:
            self.error = error.code().name

    async def send(self, *messages):
        """Sends messages, as long as the stream has not ended."""
        for message in messages:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self.call.write(message)

    async def end(self):
        """Ends the stream, and waits until the server has, too."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self.call.done_writing()
        await self.reading


def reports(buckets, allowed=0, denied=0, domain="edge"):
    """An encoded message of reports; a bucket is a sequence of pairs of texts."""

    def bucket_id(pairs):
        return b"".join(field(1, field(1, key.encode()) + field(2, value.encode())) for key, value in pairs)

    usage = field(3, allowed) + field(4, denied)
    each = b"".join(field(2, field(1, bucket_id(pairs)) + usage) for pairs in buckets)
    return field(1, domain.encode()) + each
