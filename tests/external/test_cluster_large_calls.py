"""Callers with large calls beside others: the bounds hold, and the others' limits stay exact."""

import concurrent.futures
import itertools

from cluster import PATIENT
from rls import Callers, by, question

DESCRIPTORS_MAX = 256
# Beyond what one connection may have under way.
AT_ONCE = 200
names = (f"name-{number}" for number in itertools.count())


def large_call():
    return question(*(by(("plenty", next(names))) for _ in range(DESCRIPTORS_MAX)))


def test_large_calls_of_four_callers_leave_other_limits_exact(start_cluster, callers, ends):
    cluster = start_cluster(flags=PATIENT)
    asked = cluster.replicas[0]
    greedy = [Callers() for _ in range(4)]
    for one in greedy:
        ends.callback(one.stop)
    calls = [[(asked.grpc, large_call()) for _ in range(AT_ONCE)] for _ in greedy]

    with concurrent.futures.ThreadPoolExecutor(len(greedy)) as pool:
        answers = [pool.submit(one.ask_all, its, AT_ONCE, 60.0) for one, its in zip(greedy, calls, strict=True)]
        others = []
        while not others or not all(done.done() for done in answers):
            key = ("hot", next(names))
            others.append(callers.ask_all([(asked.grpc, question(by(key, hits=10)))] * 35, timeout=60.0))
        answers = [done.result() for done in answers]

    assert not [answer for its in others for answer in its if answer.error or answer.degraded]
    assert {sum(answer.passes for answer in its) for its in others} == {30}
    assert cluster.total("tollgate_cluster_degraded_checks_total") == 0
    assert cluster.total("tollgate_cluster_breaker_openings_total") == 0
    flat = [answer for its in answers for answer in its]
    refused = [answer for answer in flat if answer.error]
    assert 0 < len(refused) < len(flat)
    assert all(answer.error.startswith("RESOURCE_EXHAUSTED") for answer in refused)
    assert asked.metric("tollgate_unanswered_requests_total", reason="overloaded") == len(refused)
    # Nothing of a refused call is charged.
    for answer, (_, call) in zip(answers[0], calls[0], strict=True):
        left = callers.ask(asked.grpc, by(("plenty", call.descriptors[0].entries[0].value), hits=0)).remaining
        assert left == (10**9 - (0 if answer.error else 1),)
