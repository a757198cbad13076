"""The client and its parts behave as clients/behaviour.md says."""

import asyncio
import collections
import inspect
import re

import grpc
import pytest

from server import eventually
from tollgate_client import (
    Client,
    Decision,
    InvalidRequestError,
    LimitStatus,
    NoAnswerError,
    Reservation,
    SliceOptions,
    Source,
    Terms,
    Unit,
    wire,
)
from tollgate_client.deny_cache import DenyCache
from tollgate_client.slice_table import SliceTable
from tollgate_client.v1 import tollgate_pb2 as v1
from vectors import (
    Counts,
    ScriptedServer,
    answer_of,
    assert_has,
    client_options,
    described,
    option_of,
    options_of,
    request_of,
    user_of,
    vectors,
)

SHORT = {
    "allowed": {"allowed": True, "source": "server"},
    "denied": {"allowed": False, "source": "server"},
    "settled": {"settled": True},
}
OPTIONS = {"client": lambda **options: Client("127.0.0.1:1", **options), "slices": SliceOptions, "terms": Terms}


class Script:
    """A client and a scripted server, and what has happened."""

    def __init__(self, server, options):
        self._server = server
        self._counts = Counts()
        self._client = Client(server.address, **options, admin_token="secret", metrics=self._counts)
        self._calls = {}
        self._reservations = {}
        self._served = []
        self._ids = {}

    async def run(self, steps):
        async with self._client, asyncio.timeout(20):
            await self._connect()
            for step in steps:
                await self._step(step)
            assert self._server.calls.empty()

    async def _connect(self):
        """Waits until the client is connected to all servers, if there are several."""
        seen = set()
        while len(self._server.servers) > 1 and len(seen) < len(self._server.servers):
            peek = asyncio.create_task(self._client.peek(request_of("ann")))
            call = await self._server.calls.get()
            seen.add(call.server)
            call.reply.set_result({"answers": ["allowed"]})
            await peek

    async def _step(self, step):
        name = step["of"] if "of" in step else user_of(step.get("request", ""))
        if "call" in step:
            self._begin(name, step)
        for request in step.get("queue", ()):
            waiting = len(self._client._batcher.queue) + 1
            self._begin(user_of(request), {"call": "check", "request": request})
            await self._waiting(waiting)
        if "waiting" in step:
            await self._waiting(step["waiting"])
        if "receive" in step:
            await self._receive(step)
        if "reply" in step:
            self._served[step["reply"] - 1].reply.set_result(step)
        if "cancel" in step:
            self._calls[step["cancel"]].cancel()
        if "close" in step:
            await self._client.close()
        results = step.get("results", {}) | ({name: step["result"]} if "result" in step else {})
        for user, result in results.items():
            assert_has(await self._calls[user], SHORT[result] if isinstance(result, str) else result)
        if "metrics" in step:
            assert step["metrics"] == {"outcomes": self._counts.outcomes, "sent": self._counts.batches}

    async def _waiting(self, checks):
        await eventually(f"{checks} checks wait", lambda: len(self._client._batcher.queue) == checks)

    def _begin(self, name, step):
        self._calls[name] = asyncio.create_task(self._result(name, step))

    async def _result(self, name, step):
        try:
            return await self._call(name, step)
        except InvalidRequestError as error:
            return {"error": ["invalid_request", str(error)]}
        except NoAnswerError as error:
            return {"error": ["no_answer", error.code.name, error.message]}
        except asyncio.CancelledError:
            return {"error": ["canceled"]}

    async def _call(self, name, step):
        match step["call"]:
            case "settle":
                hits = {int(index): used for index, used in step.get("hits", {}).items()}
                await self._client.settle(self._reservations[name], step["actual"], hits)
                return SHORT["settled"]
            case "cancel":
                await self._client.cancel(self._reservations[name])
                return SHORT["settled"]
            case "reserve":
                terms = Terms(**options_of(step.get("terms")))
                reservation = await self._client.reserve(request_of(step["request"]), terms)
                self._reservations[name] = reservation
                return described(reservation.decision) | {"ended": reservation.ended}
            case method:
                return described(await getattr(self._client, method)(request_of(step["request"])))

    async def _receive(self, step):
        call = await self._receive_one(step)
        elsewhere = step.get("elsewhere")
        if "first_fails" in step:
            elsewhere = len(self._served)
            call.reply.set_result({"fails": step["first_fails"]})
            call = await self._receive_one(step)
        if elsewhere is not None:
            assert self._served[elsewhere - 1].server != call.server
        if step.keys() & {"answers", "fails"} or call.method in ("Settle", "Cancel"):
            call.reply.set_result(step)

    async def _receive_one(self, step):
        call = await self._server.calls.get()
        self._served.append(call)
        assert call.method == step.get("call", "check").capitalize()
        assert not call.authorized, "the admin token is sent"
        requests = [wire.request_of(request_of(each)) for each in step["receive"]]
        if call.method in ("Check", "Peek", "Refund"):
            assert list(call.message.requests) == requests
        else:
            self._receive_reservation(step, call.message, requests[0])
        return call

    def _receive_reservation(self, step, message, request):
        assert (message.domain, list(message.descriptors)) == (request.domain, list(request.descriptors))
        expected = step["reservation_id"]
        if expected.startswith("$") and expected not in self._ids:
            assert re.fullmatch("[0-9a-f]{32}", message.reservation_id)
            assert message.reservation_id not in self._ids.values()
            self._ids[expected] = message.reservation_id
        assert message.reservation_id == self._ids.get(expected, expected)
        if "actual" in step:
            assert message.actual == step["actual"]
        if isinstance(message, v1.ReserveRequest):
            assert message.amount == request.hits
            terms = {
                "ttl_ms": message.ttl.ToMilliseconds(),
                "on_expiry": message.OnExpiry.Name(message.on_expiry).lower(),
            }
            assert_has(terms, step.get("receive_terms", {}))


@vectors("batches", "defaults", "ids", "reservations", "retries", key=lambda vector: "steps" in vector)
async def test_script_has_its_results(vector):
    async with ScriptedServer(vector.get("addresses", ["server"])) as server:
        await Script(server, client_options(vector)).run(vector["steps"])


@vectors("defaults", key=lambda vector: "of" in vector)
def test_options_have_defaults_and_ranges(vector):
    make = OPTIONS[vector["of"]]
    parameters = inspect.signature(Client if vector["of"] == "client" else make).parameters
    for name, default in options_of(vector.get("defaults")).items():
        assert parameters[name].default == default, name
    for value in vector.get("valid", ()):
        make(**dict([option_of(vector["option"], value)]))
    for value in vector.get("invalid", ()):
        name, value = option_of(vector["option"], value)
        with pytest.raises(ValueError, match=name):
            make(**{name: value})


def run_cache_step(cache, step):
    now = step["at"] / 1_000
    if "clear" in step:
        cache.clear(now)
        return
    request = request_of(next(step[name] for name in ("check", "refuse", "refund", "begin", "end") if name in step))
    key, hits = request.key(), request.hits_of_each()
    if "refuse" in step:
        retry_after = step.get("retry_after_ms", 0)
        reset_after = step.get("reset_after_ms", retry_after) / 1_000
        limit = LimitStatus(0, "user", 3, Unit.HOUR, 0, reset_after, refused=True)
        cache.begin(key)
        cache.insert(key, hits, Decision(False, retry_after=retry_after / 1_000, limits=(limit,)), step["sent"] / 1_000)
        cache.end(key)
    elif "check" in step:
        denied = cache.find(key, hits, now)
        assert (denied is not None) == bool(step["denied"])
        if isinstance(step["denied"], dict):
            assert_has(described(denied), {"allowed": False, "source": "deny_cache", **step["denied"]})
    elif "refund" in step:
        cache.refund(key, now)
    else:
        (cache.begin if "begin" in step else cache.end)(key)


@vectors("deny_cache")
def test_deny_cache_denies_what_the_vector_denies(vector):
    options = options_of(vector.get("options"))
    cache = DenyCache(options.get("deny_cache_keys", 10_000), options.get("deny_cache_max", 1.0))
    for step in vector["steps"]:
        run_cache_step(cache, step)
    assert not cache._under_way


class SliceScript:
    """The state machine of slices, and its ends under way."""

    def __init__(self, options):
        self._table = SliceTable(SliceOptions(**options))
        self._ends = collections.defaultdict(list)
        self._last = 0.0

    def run(self, step):
        request = request_of(step.get("check", step.get("key", "red")))
        key = request.key()
        now = step["at"] / 1_000
        if "due" in step:
            due = self._table.next_due(key, self._last)
            assert due == pytest.approx(now)
            # Sums of seconds are rounded.
            now = due
        self._last = now
        actions = self._act(step, request, key, now)
        assert self._calls_of(key, actions) == step.get("calls", [])

    def _act(self, step, request, key, now):
        if "reserved" in step:
            return self._table.reserved(key, reservation_of(step, request), now)
        if "ended" in step:
            error = {
                "ok": None,
                "no_answer": NoAnswerError(grpc.StatusCode.UNAVAILABLE, "going down"),
                "invalid": InvalidRequestError("other descriptors"),
            }[step["ended"]]
            return self._table.ended(key, self._ends[key].pop(0), error, now)
        if "close" in step:
            return self._table.close(now).get(key)
        if "due" in step:
            return self._table.advance(key, now)
        decision, actions = self._table.check(key, request, now) if self._table.serves(request) else (None, None)
        assert (decision is None) == (step["remaining"] is None)
        if decision is not None:
            expected = {name: step[name] for name in ("remaining", "reset_after_ms") if name in step}
            assert_has(described(decision), {"allowed": True, "source": "prepaid", **expected})
        return actions

    def _calls_of(self, key, actions):
        if actions is None:
            return []
        self._ends[key] += actions.ends
        calls = ["cancel" if end.spent is None else f"settle {end.spent}" for end in actions.ends]
        calls += ["reserve"] * (actions.reserve is not None)
        return calls + [f"lost {actions.lost}"] * (actions.lost > 0)


def reservation_of(step, request):
    """What the client makes of an answer to a reservation."""
    if step["reserved"] == "invalid":
        return None
    if step["reserved"] == "no_answer":
        return Reservation(request, Decision(True, Source.DEFAULT), "chosen")
    decision = wire.decision_of(answer_of(step["reserved"]))
    return Reservation(request, decision, "held" if decision.allowed and step.get("held", True) else "")


@vectors("slices")
def test_slices_have_the_decisions_and_calls_of_the_vector(vector):
    script = SliceScript(options_of(vector.get("options")))
    for step in vector["steps"]:
        script.run(step)
