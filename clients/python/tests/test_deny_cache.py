"""Refusals without the server."""

import dataclasses

import pytest

from server import eventually
from tollgate_client import Decision, Descriptor, LimitStatus, Outcome, Question, Source, Unit
from tollgate_client.deny_cache import DenyCache

ANN = [Descriptor([("user", "ann")])]
STATUS = LimitStatus(0, "user", 3, Unit.HOUR, 0, reset_after=8.0, retry_after=8.0, refused=True)
REFUSED = Decision(False, retry_after=8.0, limits=(STATUS,))


def question(user, hits=1):
    return Question("edge", [Descriptor([("user", user)])], hits)


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


async def test_fewer_hits_than_refused_are_asked_of_the_server(client):
    await client.check("edge", ANN)
    assert not (await client.check("edge", ANN, hits=3)).allowed

    assert (await client.check("edge", ANN, hits=2)).allowed


async def test_refusal_without_retry_after_is_not_kept(client):
    assert (await client.check("edge", ANN, hits=4)).retry_after is None

    assert (await client.check("edge", ANN, hits=4)).source is Source.SERVER


async def test_cache_that_is_off_asks_the_server_each_time(server, make_client):
    client = await make_client(server.address, deny_cache_keys=0)
    await client.check("edge", ANN, hits=3)

    assert [(await client.check("edge", ANN)).source for _ in range(2)] == [Source.SERVER] * 2


def test_cache_refuses_until_the_instant_and_counts_down():
    cache = DenyCache(keys=10, longest=60.0)
    cache.insert(question("ann"), REFUSED, sent=100.0)

    found = cache.find(question("ann"), now=105.0)

    assert (found.retry_after, found.tightest.reset_after, found.source) == (3.0, 3.0, Source.DENY_CACHE)
    assert cache.find(question("ann"), now=108.0) is None


def test_cache_keeps_refusals_at_most_the_longest_time():
    cache = DenyCache(keys=10, longest=1.0)
    cache.insert(question("ann"), REFUSED, sent=100.0)

    assert cache.find(question("ann"), now=100.5).retry_after == 7.5
    assert cache.find(question("ann"), now=101.0) is None


def test_full_cache_evicts_the_oldest_refusal():
    cache = DenyCache(keys=2, longest=60.0)
    for user in ("ann", "bob", "ann", "eve"):
        cache.insert(question(user), REFUSED, sent=100.0)

    found = [user for user in ("ann", "bob", "eve") if cache.find(question(user), now=100.0)]

    assert found == ["ann", "eve"]


@pytest.mark.parametrize(
    "other",
    [
        Question("core", [Descriptor([("user", "ann")])]),
        Question("edge", [Descriptor([("user", "bob")])]),
        Question("edge", [Descriptor([("user", "ann")]), Descriptor([("user", "ann")])]),
        Question("edge", [Descriptor([("user", "ann")], hits=0)]),
    ],
    ids=["domain", "value", "descriptors", "hits"],
)
def test_refusal_is_of_its_key_only(other):
    cache = DenyCache(keys=10, longest=60.0)
    cache.insert(question("ann"), REFUSED, sent=100.0)

    assert cache.find(other, now=100.0) is None


def test_refund_ends_refusals_of_checks_sent_before_it():
    cache = DenyCache(keys=10, longest=60.0)
    cache.insert(question("ann"), REFUSED, sent=100.0)
    cache.refund(question("ann", hits=5), now=101.0)
    assert cache.find(question("ann"), now=101.0) is None

    cache.insert(question("ann"), REFUSED, sent=100.9)
    assert cache.find(question("ann"), now=101.1) is None, "it may be decided before the refund"

    cache.insert(question("ann"), REFUSED, sent=101.2)
    assert cache.find(question("ann"), now=101.2) is not None


def test_cache_keeps_no_other_decisions():
    cache = DenyCache(keys=10, longest=60.0)
    for decision in (Decision(True), dataclasses.replace(REFUSED, retry_after=None)):
        cache.insert(question("ann"), decision, sent=100.0)

    assert cache.find(question("ann"), now=100.0) is None
