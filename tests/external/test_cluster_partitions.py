"""A network that falls into two parts, and comes together again: real ones, where the machine allows namespaces."""

import collections
import functools

import pytest

import network
from processes import eventually
from rls import by, question

MISSING = network.Namespaces.missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"network namespaces: {MISSING}")
LIMIT = 9
KEYS = [("share", f"name-{number}") for number in range(40)]


@pytest.fixture
def namespaces(ends):
    namespaces = network.Namespaces()
    ends.callback(namespaces.remove)
    return namespaces


@pytest.fixture
def apart_from_each_other(make_cluster, namespaces):
    """Replicas that have a machine of their own each, as far as their network goes."""

    def start(count, **options):
        cluster = make_cluster(**options)
        for _ in range(count):
            space = namespaces.add()
            # Sockets in the file system are reached from everywhere.
            cluster.start(
                space=space, grpc=f"unix:{cluster.folder}/{space.port}", cluster_listen=f"{space.address}:0"
            )
        return cluster

    return start


def ask_until_refused(callers, cluster, to, passed, rounds=LIMIT + 1):
    for _ in range(rounds):
        answers = callers.ask_all([(to, question(by(key))) for key in KEYS])
        assert not [answer for answer in answers if answer.error]
        for key, answer in zip(KEYS, answers, strict=True):
            passed[key] += answer.passes


def test_a_partition_admits_a_bounded_number_and_heals_by_itself(apart_from_each_other, namespaces, callers):
    cluster = apart_from_each_other(3)
    passed = collections.Counter()
    first, second, third = cluster.replicas
    ask_until_refused(callers, cluster, first.grpc, passed, rounds=2)

    namespaces.part(third.space)
    eventually("the smaller part knows", lambda: third.view()["isolated"])
    assert not first.view()["isolated"] and not second.view()["isolated"]
    for replica in cluster.replicas:
        ask_until_refused(callers, cluster, replica.grpc, passed)
    # With the cut a third of the limit may be admitted more, and rounding.
    assert max(passed.values()) <= LIMIT + LIMIT // 3 + 3
    assert min(passed.values()) >= 2 + 3

    namespaces.heal(third.space)
    cluster.settled()

    assert third.metric("tollgate_cluster_isolations_total") == 1
    for key in KEYS:
        left = (max(0, LIMIT - passed[key]),)
        for to in cluster.targets:
            told = functools.partial(callers.ask, to, by(key, hits=0))
            eventually(f"{key} has what was admitted charged", lambda told=told, left=left: told().remaining == left)


def test_whoever_is_silent_for_long_is_replaced_and_comes_back_when_the_network_does(
    apart_from_each_other, namespaces, callers
):
    cluster = apart_from_each_other(3, flags=["--cluster-forget-after", "3s"])
    third = cluster.replicas[2]
    before = collections.Counter()
    ask_until_refused(callers, cluster, third.grpc, before, rounds=3)
    cluster.backed_up()

    namespaces.part(third.space)
    cluster.replicas.remove(third)
    cluster.settled()
    passed = collections.Counter(before)
    ask_until_refused(callers, cluster, cluster.targets[0], passed)
    assert set(passed.values()) == {LIMIT}, "the backups know what was spent, and nobody is degraded"

    namespaces.heal(third.space)
    cluster.replicas.append(third)
    cluster.settled()
    for to in cluster.targets:
        answers = callers.ask_all([(to, question(by(key))) for key in KEYS])
        assert not [answer for answer in answers if answer.passes or answer.error or answer.degraded]
