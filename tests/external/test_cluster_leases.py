"""Leases of hot keys by behaviour: rules without them, and what ends a refusal that was lent."""

import itertools
import time

import pytest

from cluster import LONG_FORWARD_BUDGET
from load import Load, key_of
from processes import eventually
from rls import descriptor, rate_limit_request

LIMIT = 300
RULES = """
    domain: edge
    descriptors:
      - key: hot
        rate_limit: {{unit: year, requests_per_unit: {limit}, algorithm: fixed_window}}
      - key: unlent
        rate_limit: {{unit: year, requests_per_unit: {limit}, algorithm: fixed_window, lease: false}}
"""
LEASED = "tollgate_cluster_leased_checks_total"
LENT = "tollgate_cluster_slices_lent_total"
# For which a replica may refuse without the owner: three quarters of the time that the owner lends.
LEASE_SECONDS = 0.375
names = (f"name-{number}" for number in itertools.count())


@pytest.fixture
def leasing_cluster(start_cluster, answers):
    """A cluster that leases hot keys early."""
    flags = ["--cluster-lease-from", "50", *LONG_FORWARD_BUDGET, *answers]
    return start_cluster(rules=RULES.format(limit=LIMIT), flags=flags)


def passes(responses):
    return sum(response.passes for response in responses)


def test_rule_without_lease_is_decided_by_owner_only(leasing_cluster, callers):
    cluster, key = leasing_cluster, ("unlent", next(names))

    calls = [(to, rate_limit_request(descriptor(key))) for to in cluster.targets * 150]
    assert passes(callers.call_all(calls)) == LIMIT
    assert cluster.total(LENT) == 0 and cluster.total(LEASED) == 0, "neither hits nor refusals are lent"

    # The same calls of a rule with leases are decided by leases.
    key = ("hot", next(names))
    calls = [(to, rate_limit_request(descriptor(key))) for to in cluster.targets * 150]
    assert passes(callers.call_all(calls)) == LIMIT
    assert cluster.total(LEASED) > 0


def set_limit(cluster, limit):
    cluster.rules.write_text(RULES.format(limit=limit))
    wanted = f"requests_per_unit={limit},"
    eventually(
        "every replica has the limit",
        lambda: all(wanted in one.call(one.admin, "/rlconfig").body for one in cluster.replicas),
    )


def refused_by_lease(cluster, callers, key):
    """Calls until some replica refuses the exhausted key without its owner, and returns the replica."""
    for replica in cluster.replicas:
        before = replica.metric(LEASED)
        responses = callers.call_all([(replica.grpc, rate_limit_request(descriptor(key)))] * 60)
        assert not passes(responses)
        if replica.metric(LEASED) > before:
            return replica
    return None


def refund(cluster, callers, key):
    assert callers.call(cluster.replicas[0].grpc, descriptor(key, hits=LIMIT, refund=True)).passes


def reset(cluster, _, key):
    replica = cluster.replicas[0]
    response = replica.call(replica.admin, f"/counters?domain=edge&key={key[0]}={key[1]}", "DELETE")
    assert response.code == 200, response.body


def reload(cluster, *_):
    set_limit(cluster, 2 * LIMIT)


@pytest.mark.parametrize("free", [refund, reset, reload])
def test_lent_refusal_ends_when_hits_are_freed(leasing_cluster, callers, free):
    cluster = leasing_cluster

    def freed_within_lease():
        """Whether the hits were freed while a refusal was lent: a slow machine needs another try."""
        set_limit(cluster, LIMIT)
        key = ("hot", next(names))
        calls = [(to, rate_limit_request(descriptor(key))) for to in cluster.targets * 120]
        assert passes(callers.call_all(calls)) == LIMIT
        borrower = refused_by_lease(cluster, callers, key)
        if borrower is None:
            return False
        # Calls that go on renew the refusal until the hits are free.
        with Load(callers, [borrower.grpc], [descriptor(key)], concurrency=8) as load:
            refused_at = time.monotonic()
            free(cluster, callers, key)
            freed_at = time.monotonic()
            eventually("the borrower lets calls pass", lambda: load.passed[key_of(descriptor(key))])
        [passed_at, *_] = load.passed[key_of(descriptor(key))]
        return passed_at - (freed_at if free is reload else refused_at) < LEASE_SECONDS / 2

    eventually("hits are freed within a lease", freed_within_lease, 60.0)
