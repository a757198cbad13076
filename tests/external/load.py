"""Continuous load during an event of a test, within bounds."""

import asyncio
import collections
import random
import threading
import time

from processes import eventually
from rls import TIMEOUT, rate_limit_request


class Load:
    """Callers that send calls continuously to random replicas, with a bound on their number.

    `targets` is the list of addresses, which may change at any time.
    """

    CALLS_MAX = 60_000

    def __init__(
        self, callers, targets, descriptors, concurrency=4, interval=0.004, timeout=TIMEOUT, seconds_max=60.0
    ):
        self.callers = callers
        self.targets = targets
        self.descriptors = list(descriptors)
        self.timeout = timeout
        self.interval = interval
        self.concurrency = concurrency
        self.seconds_max = seconds_max
        self.responses = []
        self.passed = collections.defaultdict(list)
        # By key, the calls that the owner may have charged without its answer: degraded ones, and those without an answer.
        self.uncertain = collections.Counter()
        self.stopped = False

    async def _caller(self, number):
        rng = random.Random(number)
        end = time.monotonic() + self.seconds_max
        while not self.stopped and len(self.responses) < self.CALLS_MAX and time.monotonic() < end:
            requested = rng.choice(self.descriptors)
            started = time.monotonic()
            response = await self.callers.call_async(
                rng.choice(self.targets), rate_limit_request(requested), self.timeout
            )
            self.responses.append(response)
            if response.degraded or response.error:
                self.uncertain[key_of(requested)] += 1
            if response.passes:
                self.passed[key_of(requested)].append((started, time.monotonic()))
            await asyncio.sleep(self.interval)

    async def _all(self):
        await asyncio.gather(*(self._caller(number) for number in range(self.concurrency)))

    def __enter__(self):
        self.done = asyncio.run_coroutine_threadsafe(self._all(), self.callers.loop)
        self.await_calls(50)
        return self

    def __exit__(self, *_):
        self.stopped = True
        self.done.result(30.0)

    def await_calls(self, calls):
        target = len(self.responses) + calls
        eventually(f"{calls} further calls", lambda: target <= len(self.responses))

    def passed_count(self, descriptor):
        return len(self.passed[key_of(descriptor)])

    def passed_between(self, descriptor, since, until):
        """Calls that may have passed in this time: answered after its begin, and sent before its end."""
        return sum(since <= answered and sent <= until for sent, answered in self.passed[key_of(descriptor)])

    def failed(self):
        return [response for response in self.responses if response.error]

    def degraded(self):
        return [response for response in self.responses if response.degraded]


def key_of(descriptor):
    return tuple((entry["key"], entry["value"]) for entry in descriptor["entries"])


class EdgeLoad:
    """Clients that send requests to an Envoy in a closed loop, with a bound on their number."""

    CALLS_OF_A_CLIENT_MAX = 20_000

    def __init__(self, envoy, clients, header="x_user"):
        self.envoy = envoy
        self.header = header
        self.codes = []
        self.stopped = threading.Event()
        self.threads = [threading.Thread(target=self.call, args=(number,)) for number in range(clients)]

    def call(self, number):
        for _ in range(self.CALLS_OF_A_CLIENT_MAX):
            if self.stopped.wait(0.005):
                return
            try:
                self.codes.append(self.envoy.get(**{self.header: f"client-{number}"}).code)
            except OSError as error:
                self.codes.append(repr(error))

    def await_calls(self, calls):
        target = len(self.codes) + calls
        eventually(f"{calls} further calls", lambda: len(self.codes) >= target)

    def failures(self):
        return [code for code in self.codes if code != 200]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        self.await_calls(50)
        return self

    def __exit__(self, *_):
        self.stopped.set()
        for thread in self.threads:
            thread.join()
