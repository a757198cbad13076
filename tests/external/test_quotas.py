"""Three real Envoys that decide by themselves, with the configuration of docs/rlqs.md: deploy/envoy/envoy-rlqs.yaml and
deploy/rules/quotas.yaml, unchanged except for ports."""

import asyncio
import bisect
import collections
import contextlib
import threading
import time

import pytest

from processes import ROOT, eventually

BOOTSTRAP = ROOT / "deploy" / "envoy" / "envoy-rlqs.yaml"
RULES = ROOT / "deploy" / "rules" / "quotas.yaml"
RATE, BURST, BUDGET = 100, 20, 500
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

    def most_in(self, seconds):
        """The most that passed in any span of this length."""
        times = sorted(self.passed)
        return max((bisect.bisect_left(times, at + seconds) - index for index, at in enumerate(times)), default=0)

    def passed_between(self, begin, end):
        return sum(begin <= at < end for at in self.passed)


def envoy_bootstrap(port):
    """The configuration of docs/rlqs.md with Tollgate on this port."""
    text = BOOTSTRAP.read_text()
    for old, new in [("10000", "0"), ("9901", "0"), ("8081", port)]:
        assert f"port_value: {old} " in text
        text = text.replace(f"port_value: {old} ", f"port_value: {new} ")
    return text


@pytest.fixture
def edges(start_tollgate, start_envoy):
    tollgate = start_tollgate(RULES, flags=["--rlqs-enabled", "true"])
    started = time.monotonic()
    text = envoy_bootstrap(tollgate.grpc.rsplit(":", 1)[1])
    envoys = [start_envoy(text) for _ in range(3)]
    for envoy in envoys:
        eventually("tollgate is healthy in envoy", lambda envoy=envoy: envoy.healthy("tollgate"))
    eventually("tollgate has learnt", lambda: time.monotonic() - started > LEARNING_SECONDS)
    return tollgate, envoys


@pytest.fixture
def open_loop(cleanup):
    def start(envoys, tenant):
        load = OpenLoop(envoys, tenant)
        cleanup.callback(load.stop)
        return load

    return start


def seconds_pass(seconds, since=None):
    until = (time.time() if since is None else since) + seconds
    eventually(f"{seconds} s", lambda: time.time() >= until, timeout=seconds + 1 if since is None else 130)
    return until


@pytest.mark.timing
def test_rate_of_three_envoys_is_one_limit_and_follows_demand(edges, open_loop):
    _, envoys = edges
    load = open_loop(envoys, "acme")
    load.rates = [150, 60, 5]
    seconds_pass(10)
    before = time.time()
    seconds_pass(10)
    settled = load.passed_between(before, before + 10)
    load.rates = [5, 60, 150]
    shifted = time.time()
    seconds_pass(20)
    after = load.passed_between(shifted + 10, shifted + 20)
    load.rates = [0, 0, 0]
    most = {seconds: load.most_in(seconds) for seconds in (1, 5, 10)}
    print(f"settled {settled / 10}/s, after the shift {after / 10}/s, most {most}, codes {load.codes}")

    assert settled >= 0.9 * RATE * 10
    assert after >= 0.9 * RATE * 10
    for seconds, number in most.items():
        # One for each Envoy whose part of the burst is below one.
        assert number <= BURST + RATE * (seconds + LATE) + len(envoys), most


@pytest.mark.timing
def test_budget_of_three_envoys_is_used_and_never_exceeded(edges, open_loop):
    _, envoys = edges
    load = open_loop(envoys, "trial")
    begin = seconds_pass(60 - time.time() % 60 + 0.05, time.time())
    load.rates = [14, 6, 1.5]
    minute = begin - begin % 60
    seconds_pass(61.5, minute)
    load.rates = [0, 0, 0]
    passed = load.passed_between(minute, minute + 60)
    print(f"{passed} of {BUDGET} passed, codes {load.codes}")

    assert passed <= BUDGET
    assert passed >= 0.95 * BUDGET


@pytest.mark.timing
def test_budget_is_one_for_envoys_and_callers(edges, open_loop):
    tollgate, envoys = edges
    load = open_loop(envoys, "trial")
    begin = seconds_pass(60 - time.time() % 60 + 0.05, time.time())
    load.rates = [14, 6, 1.5]
    minute, asked = begin - begin % 60, 0
    body = '{"domain": "quotas", "descriptors": [{"entries": [{"key": "tenant", "value": "trial"}]}]}'
    while time.time() < minute + 55:
        time.sleep(0.1)
        answer = tollgate.call(tollgate.http, "/json", "POST", {"content-type": "application/json"}, body)
        asked += answer.code == 200
    load.rates = [0, 0, 0]
    passed = load.passed_between(minute, minute + 60)
    print(f"{passed} passed at Envoys and {asked} of callers, {BUDGET} in all")

    assert passed + asked <= BUDGET
    assert passed + asked >= 0.9 * BUDGET and asked >= 50


def test_envoy_denies_all_after_its_assignment_without_a_server(edges):
    tollgate, envoys = edges
    eventually("a request passes", lambda: envoys[0].get(x_tenant="acme").code == 200)
    tollgate.stop()
    # 15 s, and the time of the machine.
    eventually("nothing passes", lambda: envoys[0].codes(20, x_tenant="acme") == [429] * 20, timeout=40)
