"""Callers that ask all the time while something happens, within bounds."""

import asyncio
import collections
import random
import threading
import time

from processes import eventually
from rls import TIMEOUT, question


class Load:
    """Callers that ask again and again about some users, each of a replica by chance, with a bound on how often.

    Which addresses may be asked is up to `targets`, a list that may change at any time.
    """

    CALLS_MAX = 60_000
    SECONDS_MAX = 60.0

    def __init__(self, callers, targets, descriptors, at_once=4, pause=0.004, timeout=TIMEOUT):
        self.callers = callers
        self.targets = targets
        self.descriptors = list(descriptors)
        self.timeout = timeout
        self.pause = pause
        self.at_once = at_once
        self.answers = []
        self.passed = collections.defaultdict(list)
        self.over = False

    async def _caller(self, number):
        dice = random.Random(number)
        end = time.monotonic() + self.SECONDS_MAX
        while not self.over and len(self.answers) < self.CALLS_MAX and time.monotonic() < end:
            asked = dice.choice(self.descriptors)
            answer = await self.callers.call(dice.choice(self.targets), question(asked), self.timeout)
            self.answers.append(answer)
            if answer.passes:
                self.passed[name_of(asked)].append(time.monotonic())
            await asyncio.sleep(self.pause)

    async def _all(self):
        await asyncio.gather(*(self._caller(number) for number in range(self.at_once)))

    def __enter__(self):
        self.done = asyncio.run_coroutine_threadsafe(self._all(), self.callers.loop)
        self.await_further(50)
        return self

    def __exit__(self, *_):
        self.over = True
        self.done.result(30.0)

    def await_further(self, calls):
        enough = len(self.answers) + calls
        eventually(f"{calls} further calls", lambda: enough <= len(self.answers))

    def passed_of(self, descriptor):
        return len(self.passed[name_of(descriptor)])

    def passed_since(self, descriptor, moment):
        return sum(moment <= passed for passed in self.passed[name_of(descriptor)])

    def failed(self):
        return [answer for answer in self.answers if answer.error]

    def degraded(self):
        return [answer for answer in self.answers if answer.degraded]

    def slowest(self):
        return max(answer.seconds for answer in self.answers)


def name_of(descriptor):
    return tuple((entry["key"], entry["value"]) for entry in descriptor["entries"])


class EdgeLoad:
    """Clients that ask an Envoy again and again, each as soon as it has its answer, with a bound on how often."""

    CALLS_OF_A_CLIENT_MAX = 20_000

    def __init__(self, envoy, clients, header="x_user"):
        self.envoy = envoy
        self.header = header
        self.codes = []
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self.call, args=(number,)) for number in range(clients)]

    def call(self, number):
        for _ in range(self.CALLS_OF_A_CLIENT_MAX):
            if self.over.wait(0.005):
                return
            try:
                self.codes.append(self.envoy.get(**{self.header: f"client-{number}"}).code)
            except OSError as error:
                self.codes.append(repr(error))

    def await_further(self, calls):
        enough = len(self.codes) + calls
        eventually(f"{calls} further calls", lambda: len(self.codes) >= enough)

    def failures(self):
        return [code for code in self.codes if code != 200]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        self.await_further(50)
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()
