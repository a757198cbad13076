"""Planned changes: replicas are replaced, added, removed and stopped, and every budget goes on from where it was."""

import pytest

from bootstraps import bootstrap, header, rate_limit, route
from processes import eventually
from rls import Load, by, question

KEYS = [(key, f"name-{number}") for key in ("user", "bucket") for number in range(100)]


@pytest.fixture
def spend(callers):
    """Charges so many hits of each key, spread over the replicas, and says how many of the calls passed."""

    def spend(cluster, hits, keys=KEYS):
        targets = cluster.targets
        calls = [(targets[n % len(targets)], question(by(key, hits=hits))) for n, key in enumerate(keys)]
        answers = callers.ask_all(calls)
        assert not [answer for answer in answers if answer.error or answer.degraded]
        return sum(answer.passes for answer in answers)

    return spend


@pytest.fixture
def exactly_remain(spend):
    def exactly_remain(cluster, hits, keys=KEYS):
        assert spend(cluster, hits, keys) == len(keys)
        assert spend(cluster, 1, keys) == 0

    return exactly_remain


def test_after_all_three_are_replaced_exactly_the_rest_is_admitted(start_cluster, spend, exactly_remain):
    cluster = start_cluster()
    former = cluster.replicas[0].serving()
    assert spend(cluster, 4) == len(KEYS)

    cluster.roll()

    assert not set(former) & set(cluster.replicas[0].serving())
    exactly_remain(cluster, 6)


def test_from_three_to_five_to_two_exactly_the_rest_is_admitted(start_cluster, spend, exactly_remain):
    cluster = start_cluster()
    assert spend(cluster, 3) == len(KEYS)

    cluster.start(2)
    assert spend(cluster, 3) == len(KEYS)
    # Also those that hold what was theirs from the start.
    cluster.remove(*cluster.replicas[:3])
    cluster.settled()

    exactly_remain(cluster, 4)


def test_while_all_are_replaced_and_scaled_under_load_no_call_fails_and_no_budget_changes(start_cluster, callers):
    cluster = start_cluster()
    for replica in cluster.replicas:
        assert replica.metric("tollgate_cluster_degraded_total") == 0
    hot, plenty = by(("hot", "one")), [by(("plenty", f"name-{number}")) for number in range(50)]

    with Load(callers, cluster.targets, [hot, *plenty, hot]) as load:
        first, second, third = cluster.replicas
        for old in (first, second, third):
            cluster.replace(old, drain_delay="500ms")
            load.await_further(50)
        cluster.start(1)
        cluster.remove(*cluster.replicas[:2])
        cluster.settled()
        load.await_further(50)

    assert not load.failed() and not load.degraded()
    assert cluster.total("tollgate_cluster_degraded_total") == 0
    passed = load.passed_of(hot)
    [left] = callers.ask(cluster.targets[0], hot | {"hits_addend": {"value": 0}}).remaining
    assert passed + left == 300


def test_while_all_are_replaced_envoy_notices_nothing(start_cluster, start_envoy, echo):
    cluster = start_cluster(2)
    addresses = {}
    for replica in cluster.replicas:
        addresses[replica] = replica.grpc
    routes = [route("/", rate_limit(header("plenty")))]
    envoy = start_envoy(bootstrap(list(addresses.values()), echo.address, routes, failure_mode_deny=True))
    eventually("both are in use", lambda: envoy.healthy_hosts("tollgate") == 2)

    assert envoy.codes(5, x_plenty="ann") == [200] * 5
