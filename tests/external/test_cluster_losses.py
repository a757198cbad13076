"""Replicas are killed, fall silent or become slow: what is forgotten, who answers meanwhile, and how soon."""

import collections
import itertools
import time

from cluster import BACKUP_INTERVAL, PATIENT
from load import Load
from processes import eventually
from rls import by, question

FORWARD_BUDGET = 0.5
# What a busy machine may add to any time.
GRACE = 0.4
KEYS = [(key, f"name-{number}") for key in ("user", "bucket") for number in range(60)]
PLENTY = [by(("plenty", f"name-{number}")) for number in range(60)]


def spend(callers, cluster, hits, keys=KEYS):
    targets = cluster.targets
    calls = [(targets[n % len(targets)], question(by(key, hits=hits))) for n, key in enumerate(keys)]
    return callers.ask_all(calls)


def passes(answers):
    return sum(answer.passes for answer in answers)


def test_a_killed_replica_is_replaced_by_the_others_and_nothing_older_than_a_backup_is_forgotten(
    start_cluster, callers
):
    cluster = start_cluster(flags=PATIENT)
    assert passes(spend(callers, cluster, 4)) == len(KEYS)
    cluster.backed_up()

    with Load(callers, cluster.targets[:2], PLENTY, at_once=2) as load:
        cluster.kill(cluster.replicas[2])
        cluster.settled(patience=5.0)
        load.await_further(50)

    assert not load.failed() and not load.degraded()
    assert cluster.total("tollgate_cluster_degraded_checks_total") == 0
    assert passes(spend(callers, cluster, 6)) == len(KEYS)
    assert passes(spend(callers, cluster, 1)) == 0


def test_a_kill_under_load_forgets_no_more_than_was_admitted_since_the_last_backup(start_cluster, callers):
    cluster = start_cluster(flags=PATIENT)
    keys = [("hot", f"name-{number}") for number in range(6)]

    with Load(callers, cluster.targets, [by(key) for key in keys], at_once=6, pause=0.002) as load:
        load.await_further(600)
        # Callers leave it alone first, so that all calls that fail do so for another reason.
        killed = cluster.replicas[0]
        cluster.avoid(killed)
        load.await_further(60)
        killed_at = time.monotonic()
        cluster.kill(killed)
        cluster.settled(patience=5.0)
        load.await_further(60)

    assert not load.failed() and not load.degraded()
    at_risk = killed_at - BACKUP_INTERVAL - GRACE
    for key in keys:
        passed = load.passed_of(by(key)) + passes(callers.ask_all([(cluster.targets[0], question(by(key)))] * 300))
        # A call that was on its way to the dead may have been charged twice.
        assert 300 - 6 <= passed <= 300 + load.passed_since(by(key), at_risk), key


def test_beside_a_silent_replica_others_join_and_take_over_from_the_dead_within_two_seconds(start_cluster, callers):
    cluster = start_cluster(4)
    silent, dead = cluster.replicas[2:]
    silent.freeze()
    eventually("its silence is noticed", lambda: knows_silent(cluster.replicas[0], silent))

    began = time.monotonic()
    joined = cluster.launch(seeds=[cluster.replicas[0].advertised])
    joined.await_ready()
    assert time.monotonic() - began < 2.0

    held = holding(cluster.replicas[0], dead)
    assert 0 < held
    began = time.monotonic()
    cluster.replicas.remove(dead)
    dead.kill()
    eventually("what the dead held is claimed", lambda: holding(cluster.replicas[0], dead) == 0, 2.0)
    assert time.monotonic() - began < 2.0

    silent.thaw()
    cluster.settled()


def test_while_a_replica_is_silent_each_rule_does_what_it_says_and_every_answer_is_in_time(start_cluster, callers):
    cluster = start_cluster()
    kinds = ("share", "allow", "deny")
    keys = [(kind, f"name-{number}") for kind in kinds for number in range(30)]
    assert passes(spend(callers, cluster, 1, keys)) == len(keys)
    silent = cluster.replicas[2]
    silent.freeze()
    cluster.avoid(silent)
    one, other = cluster.targets

    by_time = callers.ask_all([(one, question(by(key))) for key in keys], at_once=90)
    assert max(answer.seconds for answer in by_time) < FORWARD_BUDGET + GRACE
    assert not [answer for answer in by_time if answer.error]
    eventually("its silence is noticed", lambda: all(knows_silent(one, silent) for one in cluster.replicas[:2]))

    answers = collections.defaultdict(list)
    for _ in range(10):
        for key, answer in zip(keys, callers.ask_all([(other, question(by(key))) for key in keys]), strict=True):
            answers[key].append(answer)
    lost = [key for key in keys if answers[key][0].degraded]
    # A third of the slots, by and large.
    assert all(0 < sum(key[0] == kind for key in lost) < 30 for kind in kinds)
    for key in keys:
        assert not [answer for answer in answers[key] if answer.error or answer.degraded != (key in lost)]
        assert max(answer.seconds for answer in answers[key]) < GRACE, "there is nothing to wait for"
        passed = passes(answers[key])
        if key not in lost:
            assert passed == 9 - 1 - 1, "one was spent before, and one by the first who asked"
        else:
            assert passed == {"share": 3, "allow": 10, "deny": 0}[key[0]], key
    assert cluster.replicas[1].metric("tollgate_cluster_degraded_checks_total") == 10 * len(lost)


def test_what_shares_have_admitted_is_charged_when_the_silent_one_is_heard_again(start_cluster, callers):
    cluster = start_cluster()
    keys = [("share", f"name-{number}") for number in range(30)]
    silent = cluster.replicas[2]
    silent.freeze()
    cluster.avoid(silent)
    eventually("its silence is noticed", lambda: all(knows_silent(one, silent) for one in cluster.replicas[:2]))
    passed = collections.Counter()
    for to in cluster.targets:
        for key in keys:
            passed[key] += passes(callers.ask_all([(to, question(by(key)))] * 4))
    assert set(passed.values()) == {8, 6}, "four of each at its holder, or two shares of three"

    silent.thaw()
    cluster.ready()

    def left(key):
        return callers.ask(cluster.targets[0], by(key, hits=0)).remaining

    for key in keys:
        eventually("what was admitted is charged", lambda key=key: left(key) == (9 - passed[key],))


def test_a_slow_replica_holds_up_no_join_and_no_answer_for_longer_than_its_budget(start_cluster, callers, proxies):
    cluster = start_cluster(3, proxies=proxies)
    slow = cluster.replicas[2]
    proxies.slow(slow.name, 1.0)
    cluster.avoid(slow)

    with Load(callers, cluster.targets, PLENTY, timeout=2 * FORWARD_BUDGET, at_once=8) as load:
        began = time.monotonic()
        joined = cluster.launch(seeds=[cluster.replicas[0].advertised])
        joined.await_ready()
        assert time.monotonic() - began < 2.0 + GRACE
        load.await_further(100)

    assert not load.failed()
    assert load.slowest() < FORWARD_BUDGET + GRACE
    assert load.degraded(), "what only the slow one could answer"


def test_a_silent_replica_costs_no_call_more_than_its_budget_and_no_memory(start_cluster, callers):
    cluster = start_cluster()
    silent = cluster.replicas[2]
    silent.freeze()
    cluster.avoid(silent)
    with Load(callers, cluster.targets, PLENTY, timeout=2 * FORWARD_BUDGET, at_once=16, pause=0.001) as load:
        load.await_further(500)
        before = resident(cluster.replicas[0])
        load.await_further(3000)
        after = resident(cluster.replicas[0])

    assert not load.failed()
    assert load.slowest() < FORWARD_BUDGET + GRACE
    times = sorted(answer.seconds for answer in load.answers[-2000:])
    assert times[int(0.99 * len(times))] < 0.1, "once it is known, nobody waits"
    assert after - before < 16 * 1024 * 1024


def knows_silent(replica, silent):
    return any(
        member["address"] == silent.advertised and member["silent_ms"] > 1000 for member in replica.view()["members"]
    )


def holding(replica, of):
    """How many slots `of` holds, as far as a replica knows."""
    return sum(one["holding"] for one in replica.view()["members"] if one["address"] == of.advertised)


def resident(replica):
    with open(f"/proc/{replica.child.pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def test_hits_that_a_frozen_replica_has_borrowed_are_given_back_when_it_is_heard_again(start_cluster, callers):
    cluster = start_cluster()
    borrower = cluster.replicas[0]
    others = cluster.replicas[1:]
    lost = "tollgate_cluster_slices_lost_total"

    def freeze_with_slices():
        """Freezes it while it has borrowed hits of a new key; says how many hits of that were used."""
        key = ("hot", f"name-{next(numbers)}")
        before = sum(one.metric(lost) for one in others)
        passed = passes(callers.ask_all([(borrower.grpc, question(by(key)))] * 60, at_once=16))
        borrower.freeze()
        try:
            eventually("it has borrowed", lambda: before < sum(one.metric(lost) for one in others), 2.0)
        except AssertionError:
            borrower.thaw()
            cluster.settled()
            return None
        return key, passed

    numbers = itertools.count()
    key, passed = eventually("a replica is frozen with slices", freeze_with_slices, 60.0)
    borrower.thaw()
    cluster.settled()

    def left():
        return callers.ask(others[0].grpc, by(key, hits=0)).remaining

    eventually("what it has not used is given back", lambda: left() == (300 - passed,))
    passed += passes(callers.ask_all([(others[0].grpc, question(by(key)))] * 320))
    assert passed == 300
