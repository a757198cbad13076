"""Refusals without the server."""

import asyncio
import dataclasses
import tracemalloc

import pytest

from server import eventually
from tollgate_client import (
    Decision,
    Descriptor,
    InvalidRequest,
    Limit,
    LimitStatus,
    Outcome,
    Question,
    Source,
    Unit,
    wire,
)
from tollgate_client.deny_cache import DenyCache

ANN = [Descriptor([("user", "ann")])]
STATUS = LimitStatus(0, "user", 3, Unit.HOUR, 0, reset_after=8.0, retry_after=8.0, refused=True)
REFUSED = Decision(False, retry_after=8.0, limits=(STATUS,))


def question(user, hits=1):
    return Question("edge", [Descriptor([("user", user)])], hits)


def key_of(asked):
    return wire.key_of(wire.request_of(asked))


def refuse(cache, asked, sent, decision=REFUSED):
    request = wire.request_of(asked)
    cache.begin(wire.key_of(request))
    cache.insert(wire.key_of(request), wire.hits_of(request), decision, sent)
    cache.end(wire.key_of(request))


def find(cache, asked, now):
    request = wire.request_of(asked)
    return cache.find(wire.key_of(request), wire.hits_of(request), now)


async def test_refused_key_is_refused_without_the_server(server, make_client, counts):
    client = await make_client(server.address, deny_cache_max=3_600, metrics=counts)
    await client.check("edge", ANN, hits=3)
    refused = await client.check("edge", ANN)
    server.stop()

    again = await client.check("edge", ANN)

    assert (again.allowed, again.source) == (False, Source.DENY_CACHE)
    assert 0 < again.retry_after <= refused.retry_after
    assert again.tightest.requests_per_unit == 3
    assert counts.outcomes[Outcome.DENIED_LOCALLY] == 1
    assert counts.batches == 2
    assert (await client.check("edge", [Descriptor([("user", "bob")])])).source is Source.DEFAULT


async def test_key_passes_after_its_retry_after(client, counts):
    quick = [Descriptor([("quick", "x")])]
    assert (await client.check("edge", quick)).allowed
    refused = await client.check("edge", quick)
    assert not refused.allowed and refused.retry_after <= 0.2

    async def passes():
        return (await client.check("edge", quick)).allowed

    await eventually("the key passes", passes)
    assert counts.outcomes[Outcome.DENIED_LOCALLY] > 0


async def test_refund_ends_local_refusal(client):
    await client.check("edge", ANN, hits=3)
    assert not (await client.check("edge", ANN)).allowed

    await client.refund("edge", ANN)

    assert (await client.check("edge", ANN)).allowed


async def test_refund_of_unknown_key_keeps_local_refusals(server, make_client):
    client = await make_client(server.address, deny_cache_keys=1, deny_cache_max=3_600)
    await client.check("edge", ANN, hits=3)
    assert not (await client.check("edge", ANN)).allowed

    await client.refund("edge", [Descriptor([("user", "bob")])])

    assert (await client.check("edge", ANN)).source is Source.DENY_CACHE


async def test_ended_checks_leave_no_record(server, client):
    await client.check("edge", ANN)
    with pytest.raises(InvalidRequest):
        await client.check("", ANN)
    with server.silent():
        check = asyncio.create_task(client.check("edge", ANN))
        await asyncio.sleep(0)
        assert len(client._deny_cache._under_way) == 1
        check.cancel()
        await asyncio.wait([check])

    # Not visible from outside but as memory.
    assert client._deny_cache._under_way == {}


async def test_fewer_hits_than_refused_are_asked_of_the_server(client):
    await client.check("edge", ANN)
    assert not (await client.check("edge", ANN, hits=3)).allowed

    assert (await client.check("edge", ANN, hits=2)).allowed


async def test_refusal_without_retry_after_is_not_kept(client):
    assert (await client.check("edge", ANN, hits=4)).retry_after is None

    assert (await client.check("edge", ANN, hits=4)).source is Source.SERVER


async def test_check_with_request_id_asks_the_server(server, make_client, counts):
    client = await make_client(server.address, deny_cache_max=3_600, metrics=counts)
    await client.check("edge", ANN, hits=3)

    sources = [(await client.check("edge", ANN, request_id=request_id)).source for request_id in ("a", "b", None)]

    # The refusal of a check with an id is for those without one.
    assert sources == [Source.SERVER, Source.SERVER, Source.DENY_CACHE]


async def test_cache_that_is_off_asks_the_server_each_time(server, make_client):
    client = await make_client(server.address, deny_cache_keys=0)
    await client.check("edge", ANN, hits=3)

    assert [(await client.check("edge", ANN)).source for _ in range(2)] == [Source.SERVER] * 2


def test_cache_refuses_until_the_instant_and_counts_down():
    cache = DenyCache(keys=10, longest=60.0)
    refuse(cache, question("ann"), sent=100.0)

    found = find(cache, question("ann"), now=105.0)

    assert (found.retry_after, found.tightest.reset_after, found.source) == (3.0, 3.0, Source.DENY_CACHE)
    assert find(cache, question("ann"), now=108.0) is None


def test_cache_keeps_refusals_at_most_the_longest_time():
    cache = DenyCache(keys=10, longest=1.0)
    refuse(cache, question("ann"), sent=100.0)

    assert find(cache, question("ann"), now=100.5).retry_after == 7.5
    assert find(cache, question("ann"), now=101.0) is None


def test_full_cache_evicts_the_oldest_refusal():
    cache = DenyCache(keys=2, longest=60.0)
    for user in ("ann", "bob", "ann", "eve"):
        refuse(cache, question(user), sent=100.0)

    found = [user for user in ("ann", "bob", "eve") if find(cache, question(user), now=100.0)]

    assert found == ["ann", "eve"]


def test_refusals_of_long_texts_take_little_memory():
    cache = DenyCache(keys=100, longest=60.0)
    tracemalloc.start()
    try:
        for i in range(100):
            refuse(cache, question(f"{i}" * 100_000), sent=100.0)
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()

    assert find(cache, question("99" * 100_000), now=100.0)


@pytest.mark.parametrize(
    "other",
    [
        Question("core", [Descriptor([("user", "ann")])]),
        Question("edge", [Descriptor([("user", "bob")])]),
        Question("edge", [Descriptor([("use", "rann")])]),
        Question("edgeuser", [Descriptor([("", "ann")])]),
        Question("edge", [Descriptor([("user", "ann")]), Descriptor([("user", "ann")])]),
        Question("edge", [Descriptor([("user", "ann"), ("user", "ann")])]),
        Question("edge", [Descriptor([("user", "ann")], limit=Limit(0, Unit.HOUR))]),
        Question("edge", [Descriptor([("user", "ann")], hits=0)]),
    ],
    ids=["domain", "value", "border of texts", "border of domain", "descriptors", "entries", "limit", "hits"],
)
def test_refusal_is_of_its_key_only(other):
    cache = DenyCache(keys=10, longest=60.0)
    refuse(cache, question("ann"), sent=100.0)

    assert find(cache, other, now=100.0) is None


def test_key_has_neither_hits_nor_request_id():
    asked = Question("edge", [Descriptor([("user", "ann")], hits=7)], 2, request_id="once")

    assert key_of(asked) == key_of(question("ann"))
    assert len({key_of(Question("edge", [Descriptor(entries)])) for entries in ([], [("a", "b")], [("b", "a")])}) == 3


def test_refund_ends_refusals_of_checks_sent_before_it():
    cache = DenyCache(keys=10, longest=60.0)
    key = key_of(question("ann"))
    refuse(cache, question("ann"), sent=100.0)
    cache.begin(key)
    cache.refund(key, now=101.0)
    assert find(cache, question("ann"), now=101.0) is None

    cache.insert(key, (1,), REFUSED, sent=100.9)
    assert find(cache, question("ann"), now=101.1) is None, "it may be decided before the refund"

    refuse(cache, question("ann"), sent=101.2)
    assert find(cache, question("ann"), now=101.2) is not None


def test_refund_of_unknown_key_evicts_no_refusal():
    cache = DenyCache(keys=2, longest=60.0)
    for user in ("ann", "bob"):
        refuse(cache, question(user), sent=100.0)
    cache.begin(key_of(question("eve")))

    for user in ("eve", "joe", "sue"):
        cache.refund(key_of(question(user)), now=100.0)

    assert all(find(cache, question(user), now=100.0) for user in ("ann", "bob"))


def test_refund_is_forgotten_when_the_last_check_of_its_key_ends():
    cache = DenyCache(keys=10, longest=60.0)
    key = key_of(question("ann"))
    for _ in range(2):
        cache.begin(key)
    cache.refund(key, now=101.0)
    for sent in (99.0, 100.0):
        cache.insert(key, (1,), REFUSED, sent)
        cache.end(key)
    assert find(cache, question("ann"), now=101.0) is None

    # The cache knows nothing of the refund any more.
    refuse(cache, question("ann"), sent=100.0)

    assert find(cache, question("ann"), now=101.0) is not None


def test_cache_keeps_no_other_decisions():
    cache = DenyCache(keys=10, longest=60.0)
    for decision in (Decision(True), dataclasses.replace(REFUSED, retry_after=None)):
        refuse(cache, question("ann"), 100.0, decision)

    assert find(cache, question("ann"), now=100.0) is None
