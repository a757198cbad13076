"""Three replicas answer as one: whatever is asked of whichever of them."""

import contextlib
import itertools
import random
import time

import pytest

from cluster import PATIENT, RULES, Cluster
from rls import Callers, by, question

MINUTE = 2
names = (f"name-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A cluster that all tests here ask, each about keys of its own. It lends what is hot at once."""
    folder = tmp_path_factory.mktemp("three")
    rules = folder / "rules.yaml"
    rules.write_text(RULES)
    with contextlib.ExitStack() as ends:
        cluster = Cluster(ends, folder, rules, flags=["--cluster-lease-from", "50", *PATIENT])
        cluster.start(3)
        yield cluster
        assert cluster.total("tollgate_cluster_degraded_checks_total") == 0


@pytest.fixture(scope="module")
def ask(three):
    callers = Callers()
    yield Asking(three, callers)
    callers.stop()


class Asking:
    """Asks a replica by chance, or the one whose address is given. None may fail or be degraded."""

    def __init__(self, cluster, callers):
        self.cluster, self.callers = cluster, callers
        self.dice = random.Random(1)

    def __call__(self, *descriptors, to=None):
        [answer] = self.all([(to or self.dice.choice(self.cluster.targets), question(*descriptors))])
        return answer

    def many(self, asked, at_once=32):
        return self.all([(self.dice.choice(self.cluster.targets), question(*one)) for one in asked], at_once)

    def all(self, calls, at_once=1):
        answers = self.callers.ask_all(calls, at_once)
        assert not [answer for answer in answers if answer.error or answer.degraded]
        return answers


def passes(answers):
    return sum(answer.passes for answer in answers)


def test_of_calls_about_one_key_to_any_replica_exactly_the_limit_pass(ask):
    asked = [[by(("hot", next(names)))]] * 600

    assert passes(ask.many(asked)) == 300


def test_of_calls_about_400_keys_to_any_replica_exactly_the_limit_of_each_pass(ask):
    users = [next(names) for _ in range(400)]
    asked = [[by(("user", user), hits=2)] for user in users] * 7
    random.Random(2).shuffle(asked)

    answers = ask.many(asked)

    passed = {user: 0 for user in users}
    for [descriptor], answer in zip(asked, answers, strict=True):
        passed[descriptor["entries"][0]["value"]] += answer.passes
    assert set(passed.values()) == {5}


def test_a_hit_is_one_charge_whichever_replica_is_asked(three, ask):
    for _ in range(10):
        user = ("user", next(names))
        for charges, to in enumerate(three.targets, 1):
            assert ask(by(user), to=to).passes
            assert {ask(by(user, hits=0), to=any_one).remaining for any_one in three.targets} == {(10 - charges,)}


def test_looks_charge_nothing_and_refunds_give_back_from_any_replica(three, ask):
    for _ in range(5):
        user = ("user", next(names))
        assert ask(by(user, hits=10)).passes
        for to in three.targets:
            assert not ask(by(user, hits=0), to=to).passes
        assert ask(by(user, hits=4, refund=True)).passes
        for to in three.targets:
            assert ask(by(user, hits=0), to=to).remaining == (4,)


def test_an_override_holds_at_every_replica_and_shares_its_count(three, ask):
    for _ in range(5):
        user = ("user", next(names))
        low, high = by(user, override=(3, MINUTE)), by(user, override=(100, MINUTE))
        assert passes([ask(low) for _ in range(6)]) == 3
        for to in three.targets:
            assert not ask(low, to=to).passes
        assert ask(high).passes
        assert ask(by(user)).remaining == (9,), "the rule's own count is another one"


def test_what_is_refused_for_one_limit_takes_nothing_of_another_that_a_different_replica_counts(ask):
    for _ in range(15):
        member, group = by(("member", next(names))), by(("group", next(names)))

        assert passes([ask(member, group) for _ in range(5)]) == 3

        assert ask(group | {"hits_addend": {"value": 0}}).remaining == (7,)
        assert passes([ask(by(("member", next(names))), group) for _ in range(9)]) == 7


def test_racing_calls_about_two_limits_leave_in_both_exactly_what_did_not_pass(ask):
    groups = [("group", next(names)) for _ in range(8)]
    asked = [[by(("member", f"{group}-{number % 4}")), by(group)] for group in groups for number in range(24)]
    random.Random(3).shuffle(asked)

    answers = ask.many(asked)

    for group in groups:
        passed = passes(a for (_, of), a in zip(asked, answers, strict=True) if of["entries"][0]["value"] == group[1])
        assert passed <= 10
        assert ask(by(group, hits=0)).remaining == (10 - passed,)
        # A charge that was about to be taken back may have refused another too early, but nothing is lost.
        assert passes([ask(by(("member", next(names))), by(group)) for _ in range(11)]) == 10 - passed


def test_a_queue_lets_go_one_after_the_other_whichever_replicas_they_came_to(ask):
    began = time.monotonic()
    answers = ask.many([[by(("turn", next(names)))]] * 12)
    waits = sorted(answer.seconds for answer in answers if answer.passes)
    refused = [answer.seconds for answer in answers if not answer.passes]

    # One leaves at once and three wait, half a second each; more where the machine takes its time to ask.
    assert 4 <= len(waits) <= 4 + int(2 * (time.monotonic() - began - 1.5)) + 1
    assert waits[3] >= 1.4
    assert max(refused) < 1.4


def test_what_is_lent_of_a_hot_key_never_passes_its_limit_and_all_of_it_is_given_out_in_the_end(three, ask):
    key = ("hot", next(names))
    lent = three.total("tollgate_cluster_leased_checks_total")

    passed = passes(ask.many([[by(key)]] * 290, at_once=16))
    assert passed == 290
    # What is still lent to others comes back as it is called for.
    passed += passes([ask(by(key)) for _ in range(30)])

    assert passed == 300
    assert three.total("tollgate_cluster_leased_checks_total") > lent, "nothing was lent"


def test_once_a_hot_key_is_refused_every_replica_refuses_it_until_something_is_given_back(three, ask):
    key = ("hot", next(names))
    assert passes(ask.many([[by(key)]] * 400)) == 300
    for to in three.targets * 5:
        assert not ask(by(key), to=to).passes

    assert ask(by(key, hits=2, refund=True)).passes

    assert passes([ask(by(key)) for _ in range(6)]) == 2
