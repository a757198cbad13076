"""Owners that answer late or not at all: the forward budget of each call, and the circuit breaker."""

import asyncio

import pytest

from load import Load
from processes import eventually
from rls import descriptor, rate_limit_request

# The default of `cluster.forward_budget_max`.
FORWARD_BUDGET_MAX = 0.5
# What a clock of milliseconds may lose, and what a tick and twenty answers at once may take.
ROUNDING, ANSWERING = 0.005, 0.1
BREAKER_OPENINGS = "tollgate_cluster_breaker_openings_total"
BACKED_UP = "tollgate_cluster_backed_up_counters_total"
FORWARDED = "tollgate_cluster_forwarded_checks_total"
# Refused without the owner, so that a usual answer tells whether the owner has decided.
KEYS = [("deny", f"name-{number}") for number in range(30)]
BREAKER_KEYS = [("refuse", f"name-{number}") for number in range(60)]
BREAKER_RULES = """
    domain: edge
    descriptors:
      - key: refuse
        rate_limit: {unit: year, requests_per_unit: 1000000000, algorithm: fixed_window, on_owner_unavailable: deny}
"""


def call_keys(callers, to, keys, timeout):
    """The responses for these keys, in order, to calls that are sent together."""
    return callers.call_all([(to, rate_limit_request(descriptor(key))) for key in keys], len(keys), timeout)


@pytest.mark.timing
def test_forward_to_frozen_owner_waits_half_of_timeout_or_cap(start_cluster, callers):
    cluster = start_cluster(may_degrade=True)
    asked, _, silent = cluster.replicas
    assert all(response.passes for response in call_keys(callers, asked.grpc, KEYS, 10.0))
    short, long = 0.6, 10.0
    # The owner has half of the time that the caller has, at most the cap.
    budgets = {short: short / 2, long: FORWARD_BUDGET_MAX}

    async def both():
        calls = [(timeout, rate_limit_request(descriptor(key))) for timeout in (short, long) for key in KEYS]
        return await asyncio.gather(*(callers.call_async(asked.grpc, request, timeout) for timeout, request in calls))

    # Before the silence is known, the owner is asked. All calls are sent at once.
    silent.freeze()
    responses = callers.run(both())

    assert not [response for response in responses if response.error]
    # What a call takes on this machine now: those whose owner answers were sent at the same time.
    usual = max(response.seconds for response in responses if response.passes)
    for timeout, answers in ((short, responses[: len(KEYS)]), (long, responses[len(KEYS) :])):
        refused = [response.seconds for response in answers if not response.passes]
        assert 0 < len(refused) < len(KEYS), "the keys of one owner, and only those"
        assert min(refused) >= budgets[timeout] - ROUNDING, "the owner has its time in each call"
        assert max(refused) <= budgets[timeout] + usual + ANSWERING, "no call waits longer"


@pytest.mark.extended
@pytest.mark.timing
def test_circuit_breaker_opens_spares_owner_and_closes(start_cluster, callers, proxies):
    cluster = start_cluster(3, rules=BREAKER_RULES, proxies=proxies, may_degrade=True)
    asked, _, late = cluster.replicas
    requests = [descriptor(key) for key in BREAKER_KEYS]
    # Heard all the time, but every answer takes longer than the forward budget.
    proxies.slow(late.name, FORWARD_BUDGET_MAX)

    with Load(callers, [asked.grpc], requests, concurrency=32) as load:
        eventually("the breaker opens", lambda: asked.metric(BREAKER_OPENINGS) > 0)
    assert not load.failed()

    # It opens for a second at a time. While it is open, calls for the owner are refused without a forward.
    def spares():
        openings, forwarded = asked.metric(BREAKER_OPENINGS), asked.metric(FORWARDED)
        answers = call_keys(callers, asked.grpc, BREAKER_KEYS, 10.0)
        refused = [response.seconds for response in answers if not response.passes]
        decided = len(answers) - len(refused)
        # The keys of the third replica are forwarded, own keys are not.
        unforwarded = asked.metric(FORWARDED) - forwarded <= decided
        return openings == asked.metric(BREAKER_OPENINGS) and refused and unforwarded and refused

    with Load(callers, [asked.grpc], requests, concurrency=32):
        refused = eventually("calls are refused without a forward", spares, 30.0)
    assert max(refused) < FORWARD_BUDGET_MAX, "no call waits for the owner"

    proxies.heal()
    eventually(
        "the owner decides again",
        lambda: all(response.passes for response in call_keys(callers, asked.grpc, BREAKER_KEYS, 10.0)),
    )
    opened = asked.metric(BREAKER_OPENINGS)
    for _ in range(5):
        assert all(response.passes for response in call_keys(callers, asked.grpc, BREAKER_KEYS, 10.0))
    assert asked.metric(BREAKER_OPENINGS) == opened
    assert asked.metric("tollgate_cluster_isolations_total") == 0


def test_joining_replica_refuses_connections_then_is_unavailable(start_cluster, callers, silent_server):
    cluster = start_cluster(1)
    # A seed that accepts and never answers may be a member, so the replica goes on looking.
    joining = cluster.launch(seeds=[silent_server])
    eventually("rules are active", lambda: joining.event("new rules are active"))

    def error():
        return callers.call(joining.grpc, descriptor(("user", "ann"))).error

    # For at most 5 s, so that clients ask another replica.
    assert "Connection refused" in error()
    joining.await_taking_calls()
    # The client connects again a moment later.
    eventually("it is connected", lambda: error() == "UNAVAILABLE: still joining the cluster")
    assert joining.call(joining.http, "/readyz").code == 503
    joining.await_ready()
    assert callers.call(joining.grpc, descriptor(("user", "ann"))).passes


@pytest.mark.extended
def test_replica_without_backups_keeps_counters_when_drained_only(start_cluster, callers):
    cluster = start_cluster(flags=["--cluster-backup-interval", "off"])
    keys = [("user", f"name-{number}") for number in range(90)]
    to = cluster.replicas[0].grpc

    def remaining():
        calls = [(to, rate_limit_request(descriptor(key, hits=0))) for key in keys]
        return [response.remaining[0] for response in callers.call_all(calls)]

    assert all(r.passes for r in callers.call_all([(to, rate_limit_request(descriptor(k, hits=4))) for k in keys]))
    assert cluster.total(BACKED_UP) == 0, "only a hand-off sends a copy"
    cluster.remove(cluster.replicas[1])
    cluster.await_settled()
    assert set(remaining()) == {6}

    cluster.kill(cluster.replicas[1])
    cluster.await_settled()

    left = remaining()
    assert set(left) == {6, 10}, "the keys of the killed owner begin anew"
    assert 0.2 * len(keys) < left.count(10) < 0.8 * len(keys)
