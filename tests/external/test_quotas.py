"""Three real Envoys that decide by themselves, with the configuration of docs/rlqs.md: deploy/envoy/envoy-rlqs.yaml and
deploy/rules/quotas.yaml, unchanged except for ports."""

import time

import pytest

from bootstraps import deployed_quotas
from processes import eventually
from quotas import (
    BUDGET,
    LEARNING_SECONDS,
    RATE,
    REPORT_SECONDS,
    RULES,
    SHARE_SECONDS,
    assert_within_rate,
    passed_between,
    seconds_pass,
)


@pytest.fixture
def start_edge(start_envoy):
    """Starts an Envoy with the deployed configuration."""

    def start(tollgate):
        envoy = start_envoy(deployed_quotas(tollgate.grpc))
        eventually("tollgate is healthy in envoy", lambda: envoy.healthy("tollgate"))
        return envoy

    return start


@pytest.fixture
def start_edges(start_tollgate, start_edge):
    def start(*flags):
        tollgate = start_tollgate(RULES, flags=["--rlqs-enabled", "true", *flags])
        started = time.monotonic()
        envoys = [start_edge(tollgate) for _ in range(3)]
        assert len({envoy.address for envoy in envoys}) == len(envoys)
        eventually("tollgate has learnt", lambda: time.monotonic() - started > LEARNING_SECONDS)
        return tollgate, envoys

    return start


@pytest.fixture
def edges(start_edges):
    return start_edges()


@pytest.mark.paced
def test_rate_of_three_envoys_is_one_limit_and_follows_demand(edges, open_loop):
    _, envoys = edges
    load = open_loop(envoys, "acme")
    load.rates = [150, 60, 5]
    seconds_pass(10)
    before = time.time()
    seconds_pass(10)
    settled = passed_between(load.passed, before, before + 10)
    load.rates = [5, 60, 150]
    shifted = time.time()
    seconds_pass(20)
    after = passed_between(load.passed, shifted + 10, shifted + 20)
    load.rates = [0, 0, 0]
    print(f"settled {settled / 10}/s, after the shift {after / 10}/s, codes {load.codes}")

    assert settled >= 0.9 * RATE * 10
    assert after >= 0.9 * RATE * 10
    assert_within_rate(load.passed, len(envoys))


@pytest.mark.paced
def test_share_of_killed_envoy_goes_to_one_that_starts(edges, start_edge, open_loop, calls):
    tollgate, envoys = edges
    load, callers = open_loop(envoys, "acme"), calls(tollgate, "acme", 10)
    load.rates = [60, 60, 60]
    seconds_pass(12)
    envoys[2].kill()
    killed = time.time()
    before = load.codes[2][200]
    envoys[2] = start_edge(tollgate)
    # A report comes up to 5 s later, and shares follow it.
    settled = seconds_pass(SHARE_SECONDS + 12, killed)
    seconds_pass(10, settled)
    load.rates = [0, 0, 0]
    each = [passed_between(one, settled, settled + 10) for one in (load.passed, callers.passed)]
    print(f"{each} in 10 s at Envoys and of callers, {load.codes[2][200] - before} at the new Envoy")

    assert sum(each) >= 0.9 * RATE * 10
    assert load.codes[2][200] - before >= 100 and each[1] >= 50
    assert_within_rate([*load.passed, *callers.passed], len(envoys) + 1)


@pytest.mark.paced
def test_restarted_server_learns_and_keeps_rate_and_budget(start_edges, start_tollgate, open_loop, calls, tmp_path):
    flags = ["--snapshot", tmp_path / "counters"]
    tollgate, envoys = start_edges(*flags)
    begin = seconds_pass(60 - time.time() % 60 + 0.05, time.time())
    minute = begin - begin % 60
    loads = {"acme": open_loop(envoys, "acme"), "trial": open_loop(envoys, "trial")}
    callers = {"acme": calls(tollgate, "acme", 5), "trial": calls(tollgate, "trial", 1)}
    loads["acme"].rates, loads["trial"].rates = [60, 60, 60], [8, 4, 1]
    seconds_pass(18, minute)
    tollgate.stop()
    # The Envoys know this address.
    again = start_tollgate(RULES, grpc=tollgate.grpc, flags=["--rlqs-enabled", "true", *flags])
    started = time.time()
    for one in callers.values():
        one.tollgate = again
    settled = seconds_pass(LEARNING_SECONDS + 12, started)
    seconds_pass(10, settled)
    seconds_pass(60.5, minute)
    for load in loads.values():
        load.rates = [0, 0, 0]
    passed = {name: [*loads[name].passed, *callers[name].passed] for name in loads}
    learning, after = (passed_between(passed["acme"], since, since + 10) for since in (started + 5, settled))
    budget = passed_between(passed["trial"], minute, minute + 60)
    print(f"{learning} in 10 s while it learns, {after} in 10 s afterwards; {budget} of {BUDGET} of the budget")

    assert after >= 0.9 * RATE * 10
    # Callers get hits beside those of Envoys until the first reports.
    assert_within_rate(passed["acme"], 2 * len(envoys), late=5 * REPORT_SECONDS)
    # The snapshot has slices as charged, and what Envoys report afterwards counts in addition.
    assert 0.4 * BUDGET <= budget <= BUDGET


@pytest.mark.paced
def test_budget_of_three_envoys_is_used_and_never_exceeded(edges, open_loop):
    _, envoys = edges
    load = open_loop(envoys, "trial")
    begin = seconds_pass(60 - time.time() % 60 + 0.05, time.time())
    load.rates = [14, 6, 1.5]
    minute = begin - begin % 60
    seconds_pass(61.5, minute)
    load.rates = [0, 0, 0]
    passed = passed_between(load.passed, minute, minute + 60)
    print(f"{passed} of {BUDGET} passed, codes {load.codes}")

    assert passed <= BUDGET
    assert passed >= 0.95 * BUDGET


@pytest.mark.paced
def test_budget_is_one_for_envoys_and_callers(edges, open_loop, calls):
    tollgate, envoys = edges
    load = open_loop(envoys, "trial")
    begin = seconds_pass(60 - time.time() % 60 + 0.05, time.time())
    load.rates = [14, 6, 1.5]
    callers = calls(tollgate, "trial", 10)
    minute = begin - begin % 60
    seconds_pass(55, minute)
    load.rates = [0, 0, 0]
    callers.stop()
    passed, asked = (passed_between(one, minute, minute + 60) for one in (load.passed, callers.passed))
    print(f"{passed} passed at Envoys and {asked} of callers, {BUDGET} in all")

    assert passed + asked <= BUDGET
    assert passed + asked >= 0.9 * BUDGET and asked >= 50


def test_envoy_denies_all_after_its_assignment_without_a_server(edges):
    tollgate, envoys = edges
    eventually("a request passes", lambda: envoys[0].get(x_tenant="acme").code == 200)
    tollgate.stop()
    # 15 s, and the time of the machine.
    eventually("nothing passes", lambda: envoys[0].codes(20, x_tenant="acme") == [429] * 20, timeout=40)
