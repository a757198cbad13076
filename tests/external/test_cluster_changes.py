"""Planned changes: replicas are replaced, added, removed and stopped, and every budget goes on from where it was."""

import socket

import pytest

from bootstraps import bootstrap, header, rate_limit, route
from cluster import PATIENT
from load import EdgeLoad, Load
from processes import LOOPBACK, eventually
from rls import by, question

KEYS = [(key, f"name-{number}") for key in ("user", "bucket") for number in range(100)]


@pytest.fixture
def free_address():
    """An address of the loopback at which nobody listens."""

    def free_address():
        with socket.socket() as taken:
            taken.bind((LOOPBACK, 0))
            return f"{LOOPBACK}:{taken.getsockname()[1]}"

    return free_address


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
    """So many hits of each key pass, and not one more."""

    def exactly_remain(cluster, hits, keys=KEYS):
        assert spend(cluster, hits, keys) == len(keys)
        assert spend(cluster, 1, keys) == 0

    return exactly_remain


def test_after_all_three_are_replaced_exactly_the_rest_is_admitted(start_cluster, spend, exactly_remain):
    cluster = start_cluster(flags=PATIENT)
    former = cluster.replicas[0].serving()
    assert spend(cluster, 4) == len(KEYS)

    cluster.roll()

    assert not set(former) & set(cluster.replicas[0].serving())
    exactly_remain(cluster, 6)


def test_from_three_to_five_to_two_exactly_the_rest_is_admitted(start_cluster, spend, exactly_remain):
    cluster = start_cluster(flags=PATIENT)
    assert spend(cluster, 3) == len(KEYS)

    cluster.start(2)
    assert spend(cluster, 3) == len(KEYS)
    # Also those that hold what was theirs from the start.
    cluster.remove(*cluster.replicas[:3])
    cluster.settled()

    exactly_remain(cluster, 4)


def test_while_all_are_replaced_and_scaled_under_load_no_call_fails_and_no_budget_changes(start_cluster, callers):
    cluster = start_cluster(drain_delay="500ms", flags=PATIENT)
    hot, plenty = by(("hot", "one")), [by(("plenty", f"name-{number}")) for number in range(50)]

    with Load(callers, cluster.targets, [hot, *plenty]) as load:
        for old in list(cluster.replicas):
            cluster.replace(old)
            load.await_further(50)
        cluster.start(2)
        load.await_further(50)
        cluster.remove(*cluster.replicas[:3])
        cluster.settled()
        load.await_further(50)

    assert not load.failed() and not load.degraded()
    assert cluster.total("tollgate_cluster_degraded_checks_total") == 0
    [left] = callers.ask(cluster.targets[0], looked_at(hot)).remaining
    assert load.passed_of(hot) + left == 300


def test_while_all_are_replaced_envoy_sees_no_error(start_cluster, start_envoy, echo, free_address):
    # Longer than the second in which Envoy gathers changes of health before it acts on them.
    cluster = start_cluster(2, drain_delay="2s", flags=PATIENT)
    spare = free_address()
    routes = [route("/", rate_limit(header("plenty")), rate_limit(header("user")))]
    envoy = start_envoy(bootstrap([*cluster.targets, spare], echo.address, routes, failure_mode_deny=True))
    eventually("both are in use", lambda: envoy.healthy_hosts("tollgate") == 2)
    assert envoy.codes(4, x_user="ann") == [200] * 4

    with EdgeLoad(envoy, clients=3, header="x_plenty") as load:
        for old in list(cluster.replicas):
            cluster.start(grpc=spare)
            eventually("the new one is in use", lambda: envoy.healthy_hosts("tollgate") == 3)
            cluster.remove(old)
            cluster.settled()
            spare = old.grpc
            load.await_further(30)

    assert load.failures() == []
    assert envoy.statistic("cluster.upstream.ratelimit.error") == 0
    assert envoy.codes(8, x_user="ann") == [200] * 6 + [429] * 2


def test_all_are_stopped_at_once_under_load_and_end_in_time(start_cluster, callers):
    cluster = start_cluster(flags=PATIENT)
    plenty = [by(("plenty", f"name-{number}")) for number in range(50)]
    with Load(callers, list(cluster.targets), plenty, at_once=8) as load:
        cluster.remove(*cluster.replicas)
        assert load.answers


@pytest.mark.parametrize("begins", ["all together", "one alone"])
def test_a_full_stop_and_a_start_go_on_from_the_snapshots(make_cluster, spend, exactly_remain, begins):
    cluster = make_cluster(flags=PATIENT)
    kept = [["--snapshot", cluster.folder / f"counters-{number}"] for number in range(3)]
    for flags in kept:
        cluster.launch(flags=flags)
    cluster.ready()
    assert spend(cluster, 7) == len(KEYS)

    cluster.remove(*cluster.replicas)
    last, *others = reversed(kept)
    cluster.launch(flags=last)
    if begins == "one alone":
        cluster.ready()
    for flags in others:
        cluster.launch(flags=flags)
    cluster.ready()

    exactly_remain(cluster, 3)


def looked_at(descriptor):
    return descriptor | {"hits_addend": {"value": 0}}
