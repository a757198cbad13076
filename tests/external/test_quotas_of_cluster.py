"""Three real Envoys that decide by themselves, each at a replica of its own, while the cluster changes."""

import time
import types

import pytest

from bootstraps import deployed_quotas
from processes import eventually
from quotas import (
    LEARNING_SECONDS,
    LONG_BUDGET,
    RATE,
    assert_within_rate,
    next_window,
    passed_between,
    rules_and_long_window,
    seconds_pass,
)

# Some requests of a cut share pass until the cut arrives.
LATE_CUT = 10
# The start of the replicas, and the demand of the rate before that of the budget.
STARTING_SECONDS, DEMAND_SECONDS = 6, 7


class Edges:
    """Envoys at replicas of a cluster. Each has a proxy in front of its replica, so that it can go on with another one."""

    def __init__(self, cluster, proxies, start_envoy, window):
        self.cluster, self.proxies, self.window = cluster, proxies, window
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


@pytest.fixture
def edges(make_cluster, proxies, start_envoy):
    rules, window = rules_and_long_window(STARTING_SECONDS + LEARNING_SECONDS + DEMAND_SECONDS)
    cluster = make_cluster(rules=rules, flags=["--rlqs-enabled", "true"])
    cluster.start(3)
    started = time.monotonic()
    edges = Edges(cluster, proxies, start_envoy, window)
    eventually("the cluster has learnt", lambda: time.monotonic() - started > LEARNING_SECONDS, timeout=30)
    return edges


def explained_shares(replica):
    explained = replica.call(replica.admin, "/explain?domain=quotas&key=tenant=acme").json()
    return explained["descriptors"][0]["shares"]


@pytest.mark.extended
@pytest.mark.paced
def test_limits_of_envoys_hold_and_are_used_while_replicas_roll(edges, open_loop):
    rate, budget = open_loop(edges.envoys, "acme"), open_loop(edges.envoys, "long")
    rate.rates = [150, 60, 5]
    seconds_pass(DEMAND_SECONDS, time.time())
    shares = [explained_shares(replica) for replica in edges.cluster.replicas]
    assert [each["clients"] for each in shares] == [3, 3, 3], "every replica shows what the owner divides"
    begin = next_window(edges.window)
    budget.rates = [14, 6, 2]
    # The first reports, after which slices are those of the demand.
    before = seconds_pass(6, begin)
    edges.roll()
    rolled = time.time()
    # To the end of the window, and for a second report.
    end = begin + edges.window
    stopped = seconds_pass(max(end, rolled + 8) - time.time(), time.time())
    rate.rates, budget.rates = [0, 0, 0], [0, 0, 0]
    during = passed_between(rate.passed, before, rolled) / (rolled - before)
    after = passed_between(rate.passed, rolled + 3, stopped) / (stopped - rolled - 3)
    used = passed_between(budget.passed, begin, end)
    print(f"{during:.1f}/s in a roll of {rolled - before:.0f} s, {after:.1f}/s after it; {used} of {LONG_BUDGET}")

    assert after >= 0.95 * RATE
    assert during >= 0.8 * RATE
    assert_within_rate(rate.passed, len(edges.envoys), LATE_CUT)
    assert 0.9 * LONG_BUDGET <= used <= LONG_BUDGET
