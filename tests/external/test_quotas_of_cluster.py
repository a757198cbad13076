"""Three real Envoys that decide by themselves, each at a replica of its own, while the cluster changes."""

import time
import types

import pytest

from bootstraps import deployed_quotas
from processes import eventually
from quotas import BUDGET, LEARNING_SECONDS, RATE, RULES, assert_within_rate, passed_between, seconds_pass

# Some requests of a cut share pass until the cut arrives.
LATE_CUT = 10


class Edges:
    """Envoys at replicas of a cluster. Each has a proxy in front of its replica, so that it can go on with another one."""

    def __init__(self, cluster, proxies, start_envoy):
        self.cluster, self.proxies = cluster, proxies
        self.replicas = list(cluster.replicas)
        addresses = [proxies.open(f"edge-{index}") for index in range(3)]
        self.point_at(self.replicas)
        self.envoys = [start_envoy(deployed_quotas(address)) for address in addresses]
        for envoy in self.envoys:
            eventually("tollgate is healthy in envoy", lambda envoy=envoy: envoy.healthy("tollgate"))

    def point_at(self, replicas):
        """New connections of each Envoy go to its replica, or to another one if that has ended."""
        for index in range(3):
            replica = replicas[index % len(replicas)]
            self.proxies.set_target(f"edge-{index}", types.SimpleNamespace(cluster=replica.grpc))

    def roll(self):
        """Replaces all replicas, one after the other."""
        for old in list(self.cluster.replicas):
            [new] = self.cluster.start()
            left = [replica for replica in self.cluster.replicas if replica is not old]
            self.point_at(left)
            self.cluster.remove(old)
            self.cluster.await_settled()

    def kill(self, replica):
        self.point_at([other for other in self.cluster.replicas if other is not replica])
        self.cluster.kill(replica)


@pytest.fixture
def edges(make_cluster, proxies, start_envoy):
    cluster = make_cluster(rules=RULES.read_text(), flags=["--rlqs-enabled", "true"])
    cluster.start(3)
    started = time.monotonic()
    edges = Edges(cluster, proxies, start_envoy)
    eventually("the cluster has learnt", lambda: time.monotonic() - started > LEARNING_SECONDS, timeout=30)
    return edges


def explained_shares(replica):
    explained = replica.call(replica.admin, "/explain?domain=quotas&key=tenant=acme").json()
    return explained["descriptors"][0]["shares"]


@pytest.mark.paced
def test_rate_of_envoys_is_one_limit_while_replicas_roll(edges, open_loop):
    load = open_loop(edges.envoys, "acme")
    load.rates = [150, 60, 5]
    seconds_pass(12)
    shares = [explained_shares(replica) for replica in edges.cluster.replicas]
    assert [each["clients"] for each in shares] == [3, 3, 3], "every replica shows what the owner divides"
    before = time.time()
    edges.roll()
    rolled = time.time()
    seconds_pass(12)
    after = passed_between(load.passed, rolled + 2, rolled + 12)
    load.rates = [0, 0, 0]
    during = passed_between(load.passed, before, rolled) / (rolled - before)
    assert_within_rate(load.passed, len(edges.envoys), LATE_CUT)
    print(f"{during:.1f}/s in a roll of {rolled - before:.0f} s, {after / 10}/s after it")

    assert after >= 0.9 * RATE * 10
    assert during >= 0.6 * RATE


@pytest.mark.paced
def test_rate_of_envoys_is_one_limit_after_a_crash(edges, open_loop):
    load = open_loop(edges.envoys, "acme")
    load.rates = [150, 60, 5]
    seconds_pass(12)
    killed = time.time()
    edges.kill(edges.cluster.replicas[0])
    seconds_pass(35)
    after = passed_between(load.passed, killed + 25, killed + 35)
    load.rates = [0, 0, 0]
    assert_within_rate(load.passed, len(edges.envoys), LATE_CUT)
    print(f"{passed_between(load.passed, killed, killed + 20) / 20}/s after a crash, then {after / 10}/s")

    assert after >= 0.9 * RATE * 10


@pytest.mark.paced
def test_budget_of_envoys_and_callers_holds_while_replicas_roll(edges, open_loop, calls):
    load = open_loop(edges.envoys, "trial")
    begin = seconds_pass(60 - time.time() % 60 + 0.05, time.time())
    load.rates = [14, 6, 1.5]
    minute = begin - begin % 60
    seconds_pass(5)
    edges.roll()
    callers = calls(edges.cluster.replicas[0], "trial", 10)
    seconds_pass(58, minute)
    load.rates = [0, 0, 0]
    callers.stop()
    asked = passed_between(callers.passed, minute, minute + 60)
    passed = passed_between(load.passed, minute, minute + 60)
    print(f"{passed} passed at Envoys and {asked} of callers, {BUDGET} in all")

    assert passed + asked <= BUDGET
    # What was left of the slices of streams that have ended counts as used.
    assert passed + asked >= 0.3 * BUDGET
