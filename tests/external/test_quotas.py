"""Three real Envoys that decide by themselves, with the configuration of docs/rlqs.md: deploy/envoy/envoy-rlqs.yaml and
deploy/rules/quotas.yaml, unchanged except for ports."""

import asyncio
import bisect
import collections
import contextlib
import json
import threading
import time

import pytest

from bootstraps import deployed_quotas
from processes import ROOT, eventually

RULES = ROOT / "deploy" / "rules" / "quotas.yaml"
RATE, BURST, BUDGET = 100, 20, 500
# What an earlier process may have assigned is over after this time.
LEARNING_SECONDS = 16
# A share of a client that has gone is in force for this time after its last report.
SHARE_SECONDS = 16
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


def passed_between(passed, begin, end):
    return sum(begin <= at < end for at in passed)


def assert_within_rate(passed, envoys):
    most = {seconds: most_in(passed, seconds) for seconds in (1, 5, 10)}
    print(f"most in 1, 5, 10 s: {most}")
    for seconds, number in most.items():
        # One for each Envoy whose part of the burst is below one.
        assert number <= BURST + RATE * (seconds + LATE) + envoys, most


@pytest.fixture
def start_edge(start_envoy):
    """Starts an Envoy with the deployed configuration."""

    def start(tollgate):
        envoy = start_envoy(deployed_quotas(tollgate.grpc))
        eventually("tollgate is healthy in envoy", lambda: envoy.healthy("tollgate"))
        return envoy

    return start


@pytest.fixture
def start_edges(start_tollgate, start_edge):
    def start(*flags):
        tollgate = start_tollgate(RULES, flags=["--rlqs-enabled", "true", *flags])
        started = time.monotonic()
        envoys = [start_edge(tollgate) for _ in range(3)]
        assert len({envoy.address for envoy in envoys}) == len(envoys)
        eventually("tollgate has learnt", lambda: time.monotonic() - started > LEARNING_SECONDS)
        return tollgate, envoys

    return start


@pytest.fixture
def edges(start_edges):
    return start_edges()


@pytest.fixture
def calls(cleanup):
    def start(tollgate, tenant, rate):
        started = Calls(tollgate, tenant, rate)
        cleanup.callback(started.stop)
        return started

    return start


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
    settled = passed_between(load.passed, before, before + 10)
    load.rates = [5, 60, 150]
    shifted = time.time()
    seconds_pass(20)
    after = passed_between(load.passed, shifted + 10, shifted + 20)
    load.rates = [0, 0, 0]
    print(f"settled {settled / 10}/s, after the shift {after / 10}/s, codes {load.codes}")

    assert settled >= 0.9 * RATE * 10
    assert after >= 0.9 * RATE * 10
    assert_within_rate(load.passed, len(envoys))


@pytest.mark.timing
def test_share_of_killed_envoy_goes_to_one_that_starts(edges, start_edge, open_loop, calls):
    tollgate, envoys = edges
    load, callers = open_loop(envoys, "acme"), calls(tollgate, "acme", 10)
    load.rates = [60, 60, 60]
    seconds_pass(12)
    envoys[2].kill()
    killed = time.time()
    before = load.codes[2][200]
    envoys[2] = start_edge(tollgate)
    # A report comes up to 5 s later, and shares follow it.
    settled = seconds_pass(SHARE_SECONDS + 12, killed)
    seconds_pass(10, settled)
    load.rates = [0, 0, 0]
    each = [passed_between(one, settled, settled + 10) for one in (load.passed, callers.passed)]
    print(f"{each} in 10 s at Envoys and of callers, {load.codes[2][200] - before} at the new Envoy")

    assert sum(each) >= 0.9 * RATE * 10
    assert load.codes[2][200] - before >= 100 and each[1] >= 50
    assert_within_rate([*load.passed, *callers.passed], len(envoys) + 1)


@pytest.mark.timing
def test_restarted_server_learns_and_keeps_rate_and_budget(start_edges, start_tollgate, open_loop, calls, tmp_path):
    flags = ["--snapshot", tmp_path / "counters"]
    tollgate, envoys = start_edges(*flags)
    begin = seconds_pass(60 - time.time() % 60 + 0.05, time.time())
    minute = begin - begin % 60
    loads = {"acme": open_loop(envoys, "acme"), "trial": open_loop(envoys, "trial")}
    callers = {"acme": calls(tollgate, "acme", 5), "trial": calls(tollgate, "trial", 1)}
    loads["acme"].rates, loads["trial"].rates = [60, 60, 60], [8, 4, 1]
    seconds_pass(18, minute)
    tollgate.stop()
    # The Envoys know this address.
    again = start_tollgate(RULES, grpc=tollgate.grpc, flags=["--rlqs-enabled", "true", *flags])
    started = time.time()
    for one in callers.values():
        one.tollgate = again
    settled = seconds_pass(LEARNING_SECONDS + 12, started)
    seconds_pass(10, settled)
    seconds_pass(60.5, minute)
    for load in loads.values():
        load.rates = [0, 0, 0]
    passed = {name: [*loads[name].passed, *callers[name].passed] for name in loads}
    learning, after = (passed_between(passed["acme"], since, since + 10) for since in (started + 5, settled))
    budget = passed_between(passed["trial"], minute, minute + 60)
    print(f"{learning} in 10 s while it learns, {after} in 10 s afterwards; {budget} of {BUDGET} of the budget")

    assert after >= 0.9 * RATE * 10
    assert_within_rate(passed["acme"], 2 * len(envoys))
    assert 0.8 * BUDGET <= budget <= BUDGET


@pytest.mark.timing
def test_budget_of_three_envoys_is_used_and_never_exceeded(edges, open_loop):
    _, envoys = edges
    load = open_loop(envoys, "trial")
    begin = seconds_pass(60 - time.time() % 60 + 0.05, time.time())
    load.rates = [14, 6, 1.5]
    minute = begin - begin % 60
    seconds_pass(61.5, minute)
    load.rates = [0, 0, 0]
    passed = passed_between(load.passed, minute, minute + 60)
    print(f"{passed} of {BUDGET} passed, codes {load.codes}")

    assert passed <= BUDGET
    assert passed >= 0.95 * BUDGET


@pytest.mark.timing
def test_budget_is_one_for_envoys_and_callers(edges, open_loop, calls):
    tollgate, envoys = edges
    load = open_loop(envoys, "trial")
    begin = seconds_pass(60 - time.time() % 60 + 0.05, time.time())
    load.rates = [14, 6, 1.5]
    callers = calls(tollgate, "trial", 10)
    minute = begin - begin % 60
    seconds_pass(55, minute)
    load.rates = [0, 0, 0]
    callers.stop()
    passed, asked = (passed_between(one, minute, minute + 60) for one in (load.passed, callers.passed))
    print(f"{passed} passed at Envoys and {asked} of callers, {BUDGET} in all")

    assert passed + asked <= BUDGET
    assert passed + asked >= 0.9 * BUDGET and asked >= 50


def test_envoy_denies_all_after_its_assignment_without_a_server(edges):
    tollgate, envoys = edges
    eventually("a request passes", lambda: envoys[0].get(x_tenant="acme").code == 200)
    tollgate.stop()
    # 15 s, and the time of the machine.
    eventually("nothing passes", lambda: envoys[0].codes(20, x_tenant="acme") == [429] * 20, timeout=40)
