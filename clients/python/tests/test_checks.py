"""Checks, peeks and refunds with a server that answers."""

import asyncio

import pytest

from tollgate_client import Descriptor, InvalidRequest, Limit, Outcome, Source, Unit

ANN = [Descriptor([("user", "ann")])]
MANY = [Descriptor([("many", "x")])]
RULES_THAT_TRY = """
domain: edge
descriptors:
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}
  - key: candidate
    rate_limit:
      {unit: hour, requests_per_unit: 9, candidate: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}}
"""


async def test_concurrent_checks_of_two_clients_pass_exactly_the_limit(server, make_client):
    clients = [await make_client(server.address, deny_cache_keys=0) for _ in range(2)]

    decisions = await asyncio.gather(*(clients[i % 2].check("edge", MANY) for i in range(1_500)))

    assert {decision.source for decision in decisions} == {Source.SERVER}
    assert sum(decision.allowed for decision in decisions) == 1_000


async def test_concurrent_checks_with_deny_cache_pass_exactly_the_limit(client):
    decisions = await asyncio.gather(*(client.check("edge", MANY) for _ in range(1_500)))

    assert sum(decision.allowed for decision in decisions) == 1_000


async def test_check_reports_each_limit_and_the_wait(client, counts):
    passed = await client.check("edge", ANN, hits=3)
    refused = await client.check("edge", ANN)

    assert (passed.allowed, passed.retry_after) == (True, None)
    [limit] = passed.limits
    assert (limit.rule, limit.requests_per_unit, limit.unit) == ("edge.user", 3, Unit.HOUR)
    assert (limit.remaining, limit.refused) == (0, False)
    assert (refused.allowed, refused.source) == (False, Source.SERVER)
    assert 3_500 < refused.retry_after <= 3_600
    assert refused.tightest.refused and refused.tightest.retry_after == refused.retry_after
    assert (counts.outcomes[Outcome.ALLOWED], counts.outcomes[Outcome.DENIED], counts.checks) == (1, 1, 2)
    assert counts.check_seconds > 0


async def test_tightest_of_passed_limits_has_fewest_hits_left(client):
    decision = await client.check("edge", [Descriptor([("group", "red")]), *ANN])

    assert [limit.remaining for limit in decision.limits] == [9, 2]
    assert decision.tightest == decision.limits[1]


async def test_hits_of_descriptor_replace_those_of_the_check(client):
    decision = await client.check("edge", [Descriptor([("group", "red")], hits=7), *ANN], hits=2)

    assert [limit.remaining for limit in decision.limits] == [3, 1]


async def test_repeated_check_with_request_id_counts_once(client):
    first = await client.check("edge", ANN, request_id="first")

    assert await client.check("edge", ANN, request_id="first") == first
    assert (await client.check("edge", ANN, request_id="second")).tightest.remaining == 1
    assert (await client.check("edge", ANN, request_id="")).tightest.remaining == 0, "it has no id"


async def test_limit_of_caller_replaces_that_of_the_rules(client):
    decision = await client.check("edge", [Descriptor([("user", "eve")], limit=Limit(7, Unit.DAY))])

    assert (decision.tightest.requests_per_unit, decision.tightest.unit) == (7, Unit.DAY)


async def test_descriptor_without_rule_passes_without_limits(client):
    decision = await client.check("edge", [Descriptor([("unknown", "x")])])

    assert decision.allowed and decision.limits == () and decision.tightest is None


async def test_peek_charges_nothing(client):
    assert (await client.peek("edge", ANN)).tightest.remaining == 3
    assert (await client.peek("edge", ANN)).tightest.remaining == 3


async def test_refund_gives_hits_back(client):
    await client.check("edge", ANN, hits=3)

    refund = await client.refund("edge", ANN, hits=2)

    assert refund.allowed and refund.source is Source.SERVER
    assert (await client.peek("edge", ANN)).tightest.remaining == 2


async def test_check_of_a_queue_has_a_delay(client):
    descriptors = [Descriptor([("turn", "x")])]
    first, second = await client.check("edge", descriptors), await client.check("edge", descriptors)

    assert first.allowed and first.delay == 0
    assert second.allowed and 0 < second.delay <= 0.05


async def test_delay_of_a_queue_may_be_longer_than_the_timeout(client):
    descriptors = [Descriptor([("slow_turn", "x")])]
    await client.check("edge", descriptors)

    second = await client.check("edge", descriptors)

    # The timeout is 10 s.
    assert second.allowed and second.source is Source.SERVER and 10 < second.delay <= 60


@pytest.mark.parametrize(
    ("domain", "descriptors", "hits"),
    [
        ("", ANN, 1),
        ("edge", [], 1),
        ("edge", ANN, 0),
        ("edge", ANN, -1),
        ("edge", ANN, 2**64),
        ("edge", [Descriptor([("user", "\ud800")])], 1),
        ("edge", [Descriptor([("user", 7)])], 1),
        ("edge", [Descriptor([("user", "a" * (4 << 20))])], 1),
        ("edge", [Descriptor([("user", "ann")], limit=Limit(1, Unit.UNKNOWN))], 1),
    ],
    ids=[
        "no domain",
        "no descriptors",
        "hits 0",
        "negative",
        "too many hits",
        "no Unicode",
        "no text",
        "too long",
        "no unit",
    ],
)
async def test_invalid_request_is_an_error_and_never_a_decision(client, counts, domain, descriptors, hits):
    with pytest.raises(InvalidRequest):
        await client.check(domain, descriptors, hits)

    assert counts.outcomes[Outcome.INVALID] == counts.checks == 1
    with pytest.raises(InvalidRequest):
        await client.refund(domain, descriptors, hits)


@pytest.mark.parametrize("request_id", ["a" * 64, 7, "\ud800"], ids=["too long", "no text", "no Unicode"])
async def test_invalid_request_id_is_an_error(client, request_id):
    with pytest.raises(InvalidRequest):
        await client.check("edge", ANN, request_id=request_id)


async def test_limits_say_what_shadow_mode_and_candidate_would_refuse(start_server, make_client):
    client = await make_client((await start_server(RULES_THAT_TRY)).address)
    descriptors = [Descriptor([("shadow", "x")]), Descriptor([("candidate", "x")])]

    first, second = [await client.check("edge", descriptors) for _ in range(2)]

    assert [(each.refused_in_shadow, each.refused_by_candidate) for each in first.limits] == [(False, False)] * 2
    assert second.allowed and not any(each.refused for each in second.limits)
    assert [(each.refused_in_shadow, each.refused_by_candidate) for each in second.limits] == [
        (True, False),
        (False, True),
    ]


async def test_peek_with_hits_is_an_error(client):
    with pytest.raises(InvalidRequest):
        await client.peek("edge", [Descriptor([("user", "ann")], hits=1)])


async def test_invalid_request_fails_no_other_of_its_batch(client, counts):
    invalid, valid = await asyncio.gather(client.check("", ANN), client.check("edge", ANN), return_exceptions=True)

    assert counts.batches == 1
    assert isinstance(invalid, InvalidRequest) and "domain" in str(invalid)
    assert valid.allowed and valid.source is Source.SERVER
