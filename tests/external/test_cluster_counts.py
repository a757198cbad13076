"""Three replicas decide as one, for any operation on any replica."""

import itertools
import random
import statistics
import time

import pytest

from cluster import DETAILED_ANSWERS
from rls import TIMEOUT, Callers, descriptor, rate_limit_request

MINUTE = 2
# Longer than the longest wait for a turn.
QUEUE_TIMEOUT = 20.0
names = (f"name-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def cluster(share_cluster):
    """Leases hot keys early, and marks degraded answers."""
    return share_cluster(flags=["--cluster-lease-from", "50", *DETAILED_ANSWERS])


@pytest.fixture(scope="module")
def call(cluster):
    callers = Callers()
    yield RandomReplicaCalls(cluster, callers)
    callers.stop()


class RandomReplicaCalls:
    """Calls a random replica, or the given one. No call may fail or be degraded."""

    def __init__(self, cluster, callers):
        self.cluster, self.callers = cluster, callers
        self.rng = random.Random(1)

    def __call__(self, *descriptors, to=None):
        [response] = self.all([(to or self.rng.choice(self.cluster.targets), rate_limit_request(*descriptors))])
        return response

    def many(self, requests, concurrency=32, timeout=TIMEOUT):
        calls = [(self.rng.choice(self.cluster.targets), rate_limit_request(*one)) for one in requests]
        return self.all(calls, concurrency, timeout)

    def all(self, calls, concurrency=1, timeout=TIMEOUT):
        responses = self.callers.call_all(calls, concurrency, timeout)
        assert not [response for response in responses if response.error or response.degraded]
        return responses


def passes(responses):
    return sum(response.passes for response in responses)


def test_calls_of_one_key_to_any_replica_admit_exactly_the_limit(call):
    requests = [[descriptor(("hot", next(names)))]] * 600

    assert passes(call.many(requests)) == 300


def test_calls_of_400_keys_to_any_replica_admit_exactly_each_limit(call):
    users = [next(names) for _ in range(400)]
    requests = [[descriptor(("user", user), hits=2)] for user in users] * 7
    random.Random(2).shuffle(requests)

    responses = call.many(requests)

    passed = {user: 0 for user in users}
    for [charged], response in zip(requests, responses, strict=True):
        passed[charged["entries"][0]["value"]] += response.passes
    assert set(passed.values()) == {5}


def test_hit_is_charged_once_on_any_replica(cluster, call):
    for _ in range(10):
        user = ("user", next(names))
        for charges, to in enumerate(cluster.targets, 1):
            assert call(descriptor(user), to=to).passes
            assert {call(descriptor(user, hits=0), to=any_one).remaining for any_one in cluster.targets} == {
                (10 - charges,)
            }


def test_peek_and_refund_work_on_any_replica(cluster, call):
    for _ in range(5):
        user = ("user", next(names))
        assert call(descriptor(user, hits=10)).passes
        for to in cluster.targets:
            assert not call(descriptor(user, hits=0), to=to).passes
        assert call(descriptor(user, hits=4, refund=True)).passes
        for to in cluster.targets:
            assert call(descriptor(user, hits=0), to=to).remaining == (4,)


def test_override_shares_one_counter_over_replicas(cluster, call):
    for _ in range(5):
        user = ("user", next(names))
        low, high = descriptor(user, override=(3, MINUTE)), descriptor(user, override=(100, MINUTE))
        assert passes([call(low) for _ in range(6)]) == 3
        for to in cluster.targets:
            assert not call(low, to=to).passes
        assert call(high).passes
        assert call(descriptor(user)).remaining == (9,), "the rule has its own counter"


def test_refused_call_charges_no_limit_of_other_owner(call):
    for _ in range(15):
        member, group = descriptor(("member", next(names))), descriptor(("group", next(names)))

        assert passes([call(member, group) for _ in range(5)]) == 3

        assert call(group | {"hits_addend": {"value": 0}}).remaining == (7,)
        assert passes([call(descriptor(("member", next(names))), group) for _ in range(9)]) == 7


def test_racing_calls_of_two_limits_keep_both_counters_exact(call):
    groups = [("group", next(names)) for _ in range(8)]
    requests = [
        [descriptor(("member", f"{group}-{number % 4}")), descriptor(group)] for group in groups for number in range(24)
    ]
    random.Random(3).shuffle(requests)

    responses = call.many(requests)

    for group in groups:
        passed = passes(
            a for (_, of), a in zip(requests, responses, strict=True) if of["entries"][0]["value"] == group[1]
        )
        assert passed <= 10
        assert call(descriptor(group, hits=0)).remaining == (10 - passed,)
        # A charge before its refund may refuse another call too early, but no hit is lost.
        assert passes([call(descriptor(("member", next(names))), descriptor(group)) for _ in range(11)]) == 10 - passed


@pytest.mark.timing
def test_queue_releases_calls_of_all_replicas_in_turn(call):
    started = time.monotonic()
    responses = call.many([[descriptor(("turn", next(names)))]] * 12, timeout=QUEUE_TIMEOUT)
    waits = sorted(response.seconds for response in responses if response.passes)
    refused = [response.seconds for response in responses if not response.passes]

    # One passes at once and three are delayed by half a second each; more pass if the machine sends calls slowly.
    assert 4 <= len(waits) <= 4 + int(2 * (time.monotonic() - started - 1.5)) + 1
    assert waits[3] >= 1.4
    assert statistics.median(refused) < 1.4, "refused at once, not after a turn"


def test_leases_of_hot_key_admit_exactly_the_limit(cluster, call):
    key = ("hot", next(names))
    lent = cluster.total("tollgate_cluster_leased_checks_total")

    passed = passes(call.many([[descriptor(key)]] * 290, concurrency=16))
    assert passed == 290
    # Leased hits of other replicas return on demand.
    passed += passes([call(descriptor(key)) for _ in range(30)])

    assert passed == 300
    assert cluster.total("tollgate_cluster_leased_checks_total") > lent, "no check was decided by a lease"


def test_exhausted_hot_key_is_refused_everywhere_until_refund(cluster, call):
    key = ("hot", next(names))
    assert passes(call.many([[descriptor(key)]] * 400)) == 300
    for to in cluster.targets * 5:
        assert not call(descriptor(key), to=to).passes

    assert call(descriptor(key, hits=2, refund=True)).passes

    assert passes([call(descriptor(key)) for _ in range(6)]) == 2
