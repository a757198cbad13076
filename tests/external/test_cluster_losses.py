"""Killed, silent and slow replicas: lost hits, degraded replies and latency."""

import collections
import itertools
import statistics
import time

from cluster import BACKUP_INTERVAL, DETAILED_ANSWERS, LONG_FORWARD_BUDGET
from load import Load
from processes import eventually
from rls import descriptor, rate_limit_request

# The default of `cluster.forward_budget_max`.
FORWARD_BUDGET = 0.5
# A deadline that is met only if no forward takes much longer than its budget, with slack for a busy machine.
DEADLINE = 4 * FORWARD_BUDGET
# The time that a backup may take on a busy machine.
BACKUP_DELAY = 0.4
KEYS = [(key, f"name-{number}") for key in ("user", "bucket") for number in range(60)]
PLENTY = [descriptor(("plenty", f"name-{number}")) for number in range(60)]


def charge_all(callers, cluster, hits, keys=KEYS):
    targets = cluster.targets
    calls = [(targets[n % len(targets)], rate_limit_request(descriptor(key, hits=hits))) for n, key in enumerate(keys)]
    return callers.call_all(calls)


def passes(responses):
    return sum(response.passes for response in responses)


def test_killed_replica_loses_nothing_that_is_backed_up(start_cluster, callers, answers):
    cluster = start_cluster(flags=[*LONG_FORWARD_BUDGET, *answers])
    assert passes(charge_all(callers, cluster, 4)) == len(KEYS)
    cluster.await_backup()

    with Load(callers, cluster.targets[:2], PLENTY, concurrency=2) as load:
        cluster.kill(cluster.replicas[2])
        cluster.await_settled(timeout=5.0)
        load.await_calls(50)

    assert not load.failed() and not load.degraded()
    assert cluster.degraded_checks() == 0
    assert passes(charge_all(callers, cluster, 6)) == len(KEYS)
    assert passes(charge_all(callers, cluster, 1)) == 0


def test_kill_under_load_loses_at_most_hits_since_last_backup(start_cluster, callers, answers):
    cluster = start_cluster(flags=[*LONG_FORWARD_BUDGET, *answers])
    keys = [("hot", f"name-{number}") for number in range(6)]

    with Load(callers, cluster.targets, [descriptor(key) for key in keys], concurrency=6, interval=0.002) as load:
        load.await_calls(600)
        # Callers stop calling it first, so that a failed call has another reason.
        killed = cluster.replicas[0]
        cluster.exclude(killed)
        load.await_calls(60)
        # Older hits are backed up.
        at_risk = time.monotonic() - killed.metric("tollgate_cluster_backup_age_seconds")
        at_risk -= BACKUP_INTERVAL + BACKUP_DELAY
        cluster.kill(killed)
        cluster.await_settled(timeout=5.0)
        load.await_calls(60)

    assert not load.failed() and not load.degraded()
    assert cluster.degraded_checks() == 0
    for key in keys:
        passed = load.passed_count(descriptor(key)) + passes(
            callers.call_all([(cluster.targets[0], rate_limit_request(descriptor(key)))] * 300)
        )
        # A forward in flight to the killed replica may have been charged twice.
        assert 300 - 6 <= passed <= 300 + load.passed_since(descriptor(key), at_risk), key


def seconds_to_join(cluster):
    started = time.monotonic()
    joined = cluster.launch(seeds=[cluster.replicas[0].advertised])
    joined.await_ready()
    return time.monotonic() - started


def test_silent_replica_does_not_delay_join_and_recovery_beyond_2_s(start_cluster, callers):
    cluster = start_cluster(3)
    # What a join takes on this machine now.
    usual = seconds_to_join(cluster)
    cluster.await_ready()
    silent, dead = cluster.replicas[2:]
    silent.freeze()
    eventually("the others notice the silence", lambda: sees_silence(cluster.replicas[0], silent))

    assert seconds_to_join(cluster) < usual + 2.0

    held = holding(cluster.replicas[0], dead)
    assert 0 < held
    cluster.replicas.remove(dead)
    dead.kill()
    eventually(
        "the slots of the dead replica have new owners", lambda: holding(cluster.replicas[0], dead) == 0, usual + 2.0
    )

    silent.thaw()
    cluster.await_settled()


def test_silent_owner_applies_on_owner_unavailable_in_time(start_cluster, callers):
    # Detailed answers, because only they tell which keys are degraded.
    cluster = start_cluster(flags=DETAILED_ANSWERS)
    kinds = ("share", "allow", "deny")
    keys = [(kind, f"name-{number}") for kind in kinds for number in range(30)]
    assert passes(charge_all(callers, cluster, 1, keys)) == len(keys)
    silent = cluster.replicas[2]
    silent.freeze()
    cluster.exclude(silent)
    one, other = cluster.targets

    calls = [(one, rate_limit_request(descriptor(key))) for key in keys]
    assert not [response for response in callers.call_all(calls, concurrency=90, timeout=DEADLINE) if response.error]
    eventually("the others notice the silence", lambda: all(sees_silence(one, silent) for one in cluster.replicas[:2]))

    responses = collections.defaultdict(list)
    for _ in range(10):
        for key, response in zip(
            keys, callers.call_all([(other, rate_limit_request(descriptor(key))) for key in keys]), strict=True
        ):
            responses[key].append(response)
    lost = [key for key in keys if responses[key][0].degraded]
    # About a third of the slots.
    assert all(0 < sum(key[0] == kind for key in lost) < 30 for kind in kinds)
    for key in keys:
        assert not [response for response in responses[key] if response.error or response.degraded != (key in lost)]
        waits = [response.seconds for response in responses[key]]
        assert statistics.median(waits) < FORWARD_BUDGET / 2, "degraded replies are immediate"
        passed = passes(responses[key])
        if key not in lost:
            assert passed == 9 - 1 - 1, "one hit was charged before, and one by the first round"
        else:
            assert passed == {"share": 3, "allow": 10, "deny": 0}[key[0]], key
    assert cluster.replicas[1].metric("tollgate_cluster_degraded_checks_total") == 10 * len(lost)


def test_local_share_hits_are_charged_when_owner_returns(start_cluster, callers):
    cluster = start_cluster()
    keys = [("share", f"name-{number}") for number in range(30)]
    silent = cluster.replicas[2]
    silent.freeze()
    cluster.exclude(silent)
    eventually("the others notice the silence", lambda: all(sees_silence(one, silent) for one in cluster.replicas[:2]))
    passed = collections.Counter()
    for to in cluster.targets:
        for key in keys:
            passed[key] += passes(callers.call_all([(to, rate_limit_request(descriptor(key)))] * 4))
    assert set(passed.values()) == {8, 6}, "four per replica at the owner, or two local shares of three"

    silent.thaw()
    cluster.await_ready()

    def left(key):
        return callers.call(cluster.targets[0], descriptor(key, hits=0)).remaining

    for key in keys:
        eventually("hits of local shares are charged", lambda key=key: left(key) == (9 - passed[key],))


def test_slow_replica_delays_no_join_and_no_reply_beyond_budget(start_cluster, callers, proxies):
    cluster = start_cluster(2, proxies=proxies)
    usual = seconds_to_join(cluster)
    cluster.await_ready()
    slow = cluster.replicas[2]
    proxies.slow(slow.name, 1.0)
    cluster.exclude(slow)

    with Load(callers, cluster.targets, PLENTY, timeout=DEADLINE, concurrency=8) as load:
        assert seconds_to_join(cluster) < usual + 2.0
        load.await_calls(100)

    assert not load.failed()
    assert cluster.degraded_checks() > 0, "checks of the slow owner are degraded"


def test_silent_replica_costs_at_most_forward_budget_and_no_memory(start_cluster, callers):
    cluster = start_cluster()
    silent = cluster.replicas[2]
    silent.freeze()
    cluster.exclude(silent)
    with Load(callers, cluster.targets, PLENTY, timeout=DEADLINE, concurrency=16, interval=0.001) as load:
        load.await_calls(500)
        before = resident(cluster.replicas[0])
        load.await_calls(3000)
        after = resident(cluster.replicas[0])

    assert not load.failed()
    times = sorted(response.seconds for response in load.responses[-2000:])
    assert times[int(0.9 * len(times))] < FORWARD_BUDGET / 2, "calls do not wait once the silence is known"
    assert after - before < 16 * 1024 * 1024


def sees_silence(replica, silent):
    return any(
        member["address"] == silent.advertised and member["silent_ms"] > 1000 for member in replica.view()["members"]
    )


def holding(replica, of):
    """The number of slots of `of`, as a replica sees it."""
    return sum(one["holding"] for one in replica.view()["members"] if one["address"] == of.advertised)


def resident(replica):
    with open(f"/proc/{replica.child.pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def test_leased_hits_of_frozen_replica_return_when_it_resumes(start_cluster, callers):
    cluster = start_cluster()
    borrower = cluster.replicas[0]
    others = cluster.replicas[1:]
    lost = "tollgate_cluster_slices_lost_total"

    def freeze_with_leases():
        """Freezes the borrower while it has leased hits of a new key; returns the key and the used hits."""
        key = ("hot", f"name-{next(numbers)}")
        before = sum(one.metric(lost) for one in others)
        passed = passes(callers.call_all([(borrower.grpc, rate_limit_request(descriptor(key)))] * 60, concurrency=16))
        borrower.freeze()
        try:
            eventually("the borrower has leased hits", lambda: before < sum(one.metric(lost) for one in others), 2.0)
        except AssertionError:
            borrower.thaw()
            cluster.await_settled()
            return None
        return key, passed

    numbers = itertools.count()
    key, passed = eventually("a replica is frozen with leases", freeze_with_leases, 60.0)
    borrower.thaw()
    cluster.await_settled()

    def left():
        return callers.call(others[0].grpc, descriptor(key, hits=0)).remaining

    eventually("unused leased hits return", lambda: left() == (300 - passed,))
    passed += passes(callers.call_all([(others[0].grpc, rate_limit_request(descriptor(key)))] * 320))
    assert passed == 300
