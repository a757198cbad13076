"""Callers with large calls beside others: bounds are enforced, and the limits of the others stay exact."""

import concurrent.futures
import itertools

import pytest

from cluster import LONG_FORWARD_BUDGET, LONG_TIMEOUT
from rls import Callers, descriptor, rate_limit_request

pytestmark = pytest.mark.extended

DESCRIPTORS_MAX = 256
# Above the limit of open forwards per connection.
AT_ONCE = 200
names = (f"name-{number}" for number in itertools.count())


def large_call():
    return rate_limit_request(*(descriptor(("plenty", next(names))) for _ in range(DESCRIPTORS_MAX)))


def test_large_calls_of_four_callers_leave_other_limits_exact(start_cluster, callers, cleanup):
    # What is tested is the bound of open checks and what refused calls charge: a build for tests works on as many
    # checks as the bound admits for longer than the usual budget.
    cluster = start_cluster(flags=LONG_FORWARD_BUDGET)
    target = cluster.replicas[0]
    heavy_callers = [Callers() for _ in range(4)]
    for one in heavy_callers:
        cleanup.callback(one.stop)
    calls = [[(target.grpc, large_call()) for _ in range(AT_ONCE)] for _ in heavy_callers]

    with concurrent.futures.ThreadPoolExecutor(len(heavy_callers)) as pool:
        responses = [
            pool.submit(one.call_all, own, AT_ONCE, LONG_TIMEOUT) for one, own in zip(heavy_callers, calls, strict=True)
        ]
        others = []
        while not others or not all(done.done() for done in responses):
            key = ("hot", next(names))
            calls_of_key = [(target.grpc, rate_limit_request(descriptor(key, hits=10)))] * 35
            others.append(callers.call_all(calls_of_key, timeout=LONG_TIMEOUT))
        responses = [done.result() for done in responses]

    assert not [response for own in others for response in own if response.error]
    assert {sum(response.passes for response in own) for own in others} == {30}
    assert cluster.total("tollgate_cluster_breaker_openings_total") == 0
    flat = [response for own in responses for response in own]
    refused = [response for response in flat if response.error]
    assert 0 < len(refused) < len(flat)
    assert all(response.error.startswith("RESOURCE_EXHAUSTED") for response in refused)
    assert target.metric("tollgate_unanswered_requests_total", reason="overloaded") == len(refused)
    # A refused call charges nothing.
    for response, (_, call) in zip(responses[0], calls[0], strict=True):
        left = callers.call(target.grpc, descriptor(("plenty", call.descriptors[0].entries[0].value), hits=0)).remaining
        assert left == (10**9 - (0 if response.error else 1),)
