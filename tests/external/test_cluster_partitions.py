"""Network partitions in real network namespaces, if the machine allows them."""

import collections
import functools

import pytest

import network
from cluster import DETAILED_ANSWERS
from processes import eventually
from rls import descriptor, rate_limit_request

MISSING = network.Namespaces.missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"network namespaces: {MISSING}")
LIMIT = 9
KEYS = [("share", f"name-{number}") for number in range(40)]


@pytest.fixture
def namespaces(cleanup):
    namespaces = network.Namespaces()
    cleanup.callback(namespaces.remove)
    return namespaces


@pytest.fixture
def start_namespaced_cluster(make_cluster, namespaces):
    """Replicas in separate network namespaces."""

    def start(count, **options):
        cluster = make_cluster(**options)
        for _ in range(count):
            sandbox = namespaces.add()
            # Unix sockets are reachable from every namespace.
            cluster.start(
                sandbox=sandbox, grpc=f"unix:{cluster.folder}/{sandbox.port}", cluster_listen=f"{sandbox.address}:0"
            )
        return cluster

    return start


def call_until_refused(callers, cluster, to, passed, rounds=LIMIT + 1):
    for _ in range(rounds):
        responses = callers.call_all([(to, rate_limit_request(descriptor(key))) for key in KEYS])
        assert not [response for response in responses if response.error]
        for key, response in zip(KEYS, responses, strict=True):
            passed[key] += response.passes


def test_partition_admits_bounded_excess_and_heals(start_namespaced_cluster, namespaces, callers):
    cluster = start_namespaced_cluster(3, may_degrade=True)
    passed = collections.Counter()
    first, second, third = cluster.replicas
    call_until_refused(callers, cluster, first.grpc, passed, rounds=2)

    namespaces.partition(third.sandbox)
    eventually("the minority detects its isolation", lambda: third.view()["isolated"])
    assert not first.view()["isolated"] and not second.view()["isolated"]
    for replica in cluster.replicas:
        call_until_refused(callers, cluster, replica.grpc, passed)
    # The isolated replica may admit a third of the limit more, and rounding.
    assert max(passed.values()) <= LIMIT + LIMIT // 3 + 3
    assert min(passed.values()) >= 2 + 3

    namespaces.heal(third.sandbox)
    cluster.await_settled()

    assert third.metric("tollgate_cluster_isolations_total") == 1
    for key in KEYS:
        left = (max(0, LIMIT - passed[key]),)
        for to in cluster.targets:
            peek = functools.partial(callers.call, to, descriptor(key, hits=0))
            eventually(f"{key}: all admitted hits are charged", lambda peek=peek, left=left: peek().remaining == left)


@pytest.mark.extended
def test_long_partitioned_replica_is_replaced_and_rejoins(start_namespaced_cluster, namespaces, callers):
    cluster = start_namespaced_cluster(3, flags=["--cluster-forget-after", "3s", *DETAILED_ANSWERS])
    third = cluster.replicas[2]
    before = collections.Counter()
    call_until_refused(callers, cluster, third.grpc, before, rounds=3)
    cluster.await_backup()

    namespaces.partition(third.sandbox)
    cluster.replicas.remove(third)
    cluster.await_settled()
    passed = collections.Counter(before)
    call_until_refused(callers, cluster, cluster.targets[0], passed)
    assert set(passed.values()) == {LIMIT}, "backups have all charges, and no reply is degraded"

    namespaces.heal(third.sandbox)
    cluster.replicas.append(third)
    cluster.await_settled()
    for to in cluster.targets:
        responses = callers.call_all([(to, rate_limit_request(descriptor(key))) for key in KEYS])
        assert not [response for response in responses if response.passes or response.error or response.degraded]
