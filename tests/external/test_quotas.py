"""Three real Envoys that decide by themselves, with the configuration of docs/rlqs.md: deploy/envoy/envoy-rlqs.yaml and
deploy/rules/quotas.yaml, unchanged except for ports and more tenants."""

import time

import pytest

from bootstraps import deployed_quotas
from processes import eventually
from quotas import (
    BUDGET,
    LEARNING_SECONDS,
    LONG_BUDGET,
    RATE,
    WINDOW,
    assert_within_rate,
    most_beyond,
    next_window,
    passed_between,
    rules_and_long_window,
    seconds_pass,
)

REFUSED = "tollgate_rlqs_refused_total"


@pytest.fixture
def rules_and_window(rule_file):
    # The time of the learning, and of the start of a server.
    rules, window = rules_and_long_window(LEARNING_SECONDS + 3)
    return rule_file(rules), window


@pytest.fixture
def start_edge(start_envoy):
    """Starts an Envoy with the deployed configuration."""

    def start(tollgate):
        envoy = start_envoy(deployed_quotas(tollgate.grpc))
        eventually("tollgate is healthy in envoy", lambda: envoy.healthy("tollgate"))
        return envoy

    return start


@pytest.fixture
def start_server(start_tollgate, rules_and_window, tmp_path):
    def start(**address):
        rules, _ = rules_and_window
        flags = ["--rlqs-enabled", "true", "--snapshot", tmp_path / "counters"]
        return start_tollgate(rules, flags=flags, **address)

    return start


@pytest.fixture
def edges(start_server, start_edge):
    tollgate = start_server()
    started = time.monotonic()
    envoys = [start_edge(tollgate) for _ in range(3)]
    assert len({envoy.address for envoy in envoys}) == len(envoys)
    eventually("tollgate has learnt", lambda: time.monotonic() - started > LEARNING_SECONDS)
    return tollgate, envoys


@pytest.mark.paced
def test_rate_of_three_envoys_is_one_limit_and_follows_demand(edges, open_loop):
    _, envoys = edges
    load = open_loop(envoys, "acme")
    load.rates = [150, 60, 5]
    settled = seconds_pass(7, time.time())
    seconds_pass(2.5, settled)
    load.rates = [5, 60, 150]
    shifted = seconds_pass(7, time.time())
    seconds_pass(2.5, shifted)
    load.rates = [0, 0, 0]
    each = [passed_between(load.passed, since, since + 2.5) / 2.5 for since in (settled, shifted)]
    print(f"settled {each[0]}/s, after the shift {each[1]}/s, codes {load.codes}")

    assert min(each) >= 0.95 * RATE
    assert_within_rate(load.passed, len(envoys))


@pytest.mark.extended
@pytest.mark.paced
def test_budget_is_one_for_envoys_and_callers(edges, open_loop, calls):
    tollgate, envoys = edges
    load = open_loop(envoys, "sprint")
    load.rates = [14, 6, 1.5]
    begin = next_window()
    # The first whole window is that of Envoys alone, the second one that of callers, too.
    seconds_pass(WINDOW - 4, begin)
    callers = calls(tollgate, "sprint", 10)
    seconds_pass(2 * WINDOW, begin)
    load.rates = [0, 0, 0]
    callers.stop()
    passed = [*load.passed, *callers.passed]
    windows = [passed_between(passed, begin + number * WINDOW, begin + (number + 1) * WINDOW) for number in range(2)]
    print(f"{windows} of {BUDGET} in windows, {len(callers.passed)} of callers, codes {load.codes}")

    assert max(windows) <= BUDGET
    # What was left of slices of the time in which the server learnt counts as used in the first window.
    assert windows[-1] >= 0.95 * BUDGET
    assert len(callers.passed) >= 0.1 * BUDGET


@pytest.mark.extended
@pytest.mark.paced
def test_burst_is_given_once_and_small_rates_by_turns(edges, start_edge, open_loop, calls):
    tollgate, envoys = edges
    turns = open_loop(envoys, "two")
    turns.rates = [5, 5, 5]
    idle, next_, callers = (open_loop(envoys, tenant) for tenant in ("idle", "next", "callers"))
    asked = calls(tollgate, "callers", 200)
    begin = time.time()
    for number in range(4):
        # A burst, then silence. Callers have used theirs when an Envoy comes, and Envoys come one after the other.
        idle.rates = [400, 0, 0]
        next_.rates = [400 if index == number % 3 else 0 for index in range(3)]
        seconds_pass(2, time.time())
        idle.rates = [0, 0, 0]
        asked.stop()
        callers.rates = [0, 20, 0]
        seconds_pass(7, time.time())
        if number == 1:
            # One that ends, and another one.
            envoys[2].kill()
            envoys[2] = start_edge(tollgate)
    for load in (turns, idle, next_, callers):
        load.rates = [0, 0, 0]
    seconds = time.time() - begin
    bursts = {"idle": idle.passed, "next": next_.passed, "callers": [*callers.passed, *asked.passed]}
    beyond = {name: most_beyond(passed, 5) for name, passed in bursts.items()}
    each = [codes[200] for codes in turns.codes]
    print(f"in {seconds:.0f} s: {({name: len(passed) for name, passed in bursts.items()})}, beyond the rate {beyond}")
    print(f"by turns {each}")

    # After a start a burst counts as given, and comes back with the rate.
    assert max(beyond.values()) <= 300 + 5
    assert min(each) >= 0.15 * sum(each) and most_beyond(turns.passed, 2) <= 2 + 3 + 1
    # With ten programs on two cores: a turn that begins late stays unused for so long.
    assert sum(each) >= 0.6 * 2 * seconds


@pytest.mark.extended
@pytest.mark.paced
def test_restarted_server_keeps_rate_and_budget(edges, rules_and_window, start_server, open_loop, calls):
    tollgate, envoys = edges
    _, window = rules_and_window
    loads = {"acme": open_loop(envoys, "acme"), "long": open_loop(envoys, "long")}
    callers = {"acme": calls(tollgate, "acme", 5), "long": calls(tollgate, "long", 1)}
    begin = next_window(window)
    loads["acme"].rates, loads["long"].rates = [60, 60, 60], [14, 6, 2]
    seconds_pass(8, begin)
    stopped = time.time()
    tollgate.stop()
    # The Envoys know this address.
    again = start_server(grpc=tollgate.grpc)
    down = time.time() - stopped
    for one in callers.values():
        one.tollgate = again
    end = seconds_pass(window, begin)
    for load in loads.values():
        load.rates = [0, 0, 0]
    passed = {name: [*loads[name].passed, *callers[name].passed] for name in loads}
    after = passed_between(passed["acme"], end - 10, end) / 10
    used = passed_between(passed["long"], begin, end)
    print(f"{down:.1f} s without a server; {after}/s afterwards; {used} of {LONG_BUDGET} of the budget")

    assert after >= 0.95 * RATE
    assert_within_rate(passed["acme"], 2 * len(envoys), late=10)
    assert 0.9 * LONG_BUDGET <= used <= LONG_BUDGET


@pytest.mark.extended
def test_envoy_denies_all_after_its_assignment_without_a_server(edges):
    tollgate, envoys = edges
    eventually("a request passes", lambda: envoys[0].get(x_tenant="acme").code == 200)
    tollgate.stop()
    # 15 s, and the time of the machine.
    eventually("nothing passes", lambda: envoys[0].codes(20, x_tenant="acme") == [429] * 20, timeout=40)


def test_quota_of_header_beyond_utf8_is_charged_and_denied(start_server, start_envoy):
    byte = "caf\xe9"  # as Python sends it, the last character is one byte
    tollgate = start_server()
    # Without the expression that bounds the values: any bytes match.
    free = deployed_quotas(tollgate.grpc).replace("[a-z0-9-]{1,32}", r"\\C*")
    envoy = start_envoy(free)
    eventually("tollgate is healthy in envoy", lambda: envoy.healthy("tollgate"))

    assert envoy.codes(20, x_tenant=byte) == [429] * 20
    # While the server learns, it has one of a request a second.
    eventually("another tenant has an assignment", lambda: envoy.get(x_tenant="acme").code == 200)
    eventually("the bucket is reported", lambda: tollgate.metric(REFUSED, reason="unassigned") >= 2, timeout=30)
    assert envoy.codes(20, x_tenant=byte) == [429] * 20
    eventually("the stream has gone on", lambda: envoy.get(x_tenant="acme").code == 200)
