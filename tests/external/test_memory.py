"""Floods of distinct keys: the memory limit holds, and which counters of other rules outlive the flood."""

import statistics
import subprocess
import time

import pytest

from processes import TOLLGATE, eventually
from rls import descriptor, rate_limit_request

MEMORY_LIMIT = 2 * 1024 * 1024
# Many more keys than fit.
FLOOD_REQUESTS, FLOOD_DESCRIPTORS = 1_000, 100
RULES = """
    domain: edge
    descriptors:
      - key: victim
        rate_limit: {unit: year, requests_per_unit: 10, algorithm: fixed_window}
      - key: login
        rate_limit:
          unit: year
          requests_per_unit: 1
          algorithm: fixed_window
          penalty: &penalty {after: 1, first: 1h, max: 1h}
""" + "".join(
    f"""
      - key: loose{number}
        rate_limit: {{unit: year, requests_per_unit: 1000000, algorithm: fixed_window}}
      - key: tight{number}
        rate_limit: {{unit: year, requests_per_unit: 1, algorithm: fixed_window}}
      - key: short{number}
        rate_limit: {{unit: second, requests_per_unit: 1, algorithm: fixed_window}}
      - key: guessed{number}
        rate_limit: {{unit: year, requests_per_unit: 1, algorithm: fixed_window, penalty: *penalty}}
"""
    for number in range(FLOOD_DESCRIPTORS)
)
HALF_USED = [("victim", f"half-{number}") for number in range(200)]
EXHAUSTED = [("victim", f"exhausted-{number}") for number in range(200)]


@pytest.fixture
def tollgate(rule_file, start_tollgate, callers):
    """A server with little memory, and counters of a rule that the floods do not charge."""
    tollgate = start_tollgate(rule_file(RULES), flags=["--store-memory-limit", str(MEMORY_LIMIT)])
    for keys, hits in ((HALF_USED, 5), (EXHAUSTED, 10)):
        assert all(response.passes for response in call_each(callers, tollgate, keys, hits))
    return tollgate


def call_each(callers, tollgate, keys, hits):
    return callers.call_all([(tollgate.grpc, rate_limit_request(descriptor(key, hits=hits))) for key in keys])


def flood(tollgate, rule, requests=FLOOD_REQUESTS):
    """Charges each of very many keys once."""
    wanted = [f"{rule}{number}=flood-{{}}" for number in range(FLOOD_DESCRIPTORS)]
    count = str(requests)
    loop = ["--keys", count, "--requests", count, "--duration", "1h", "--timeout", "1m", "--streams", "10"]
    command = [TOLLGATE, "bench", "--to", tollgate.grpc, "edge", *wanted, *loop]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("rule", ["loose", "tight"])
def test_flood_of_one_rule_frees_no_exhausted_key_of_another(tollgate, callers, rule):
    flood(tollgate, rule)

    assert tollgate.metric("tollgate_counters_bytes") <= MEMORY_LIMIT
    assert not any(response.passes for response in call_each(callers, tollgate, EXHAUSTED, 1))


def test_flood_of_nearly_unused_keys_leaves_half_used_ones_alone(tollgate, callers):
    flood(tollgate, "loose")

    assert tollgate.metric("tollgate_counters_evicted_total") > 0
    assert {response.remaining for response in call_each(callers, tollgate, HALF_USED, 0)} == {(5,)}
    fresh = [("victim", f"fresh-{number}") for number in range(200)]
    assert all(response.passes for response in call_each(callers, tollgate, fresh, 1)), "the rule has room for new keys"


def test_keys_of_short_window_free_their_memory(tollgate):
    flood(tollgate, "short")

    # The flood refuses until its windows end, so it may have evicted half-used counters, but no exhausted ones.
    fewest, most = len(EXHAUSTED), len(HALF_USED) + len(EXHAUSTED)
    eventually("only long windows are kept", lambda: fewest <= tollgate.metric("tollgate_counters") <= most, 60.0)
    # The tables shrink with their content.
    eventually("their memory is free", lambda: tollgate.metric("tollgate_counters_bytes") < MEMORY_LIMIT / 4, 60.0)


def seconds_of(call):
    begun = time.monotonic()
    call()
    return time.monotonic() - begun


@pytest.mark.extended
def test_penalised_keys_leave_probes_and_the_processor_alone(rule_file, start_tollgate):
    limit = 16 * 1024 * 1024
    tollgate = start_tollgate(rule_file(RULES), flags=["--store-memory-limit", str(limit)])
    # More keys than fit, each of which is refused then.
    flood(tollgate, "guessed", requests=3_000)
    flood(tollgate, "guessed", requests=3_000)

    assert tollgate.metric("tollgate_penalties_total") > 0
    assert tollgate.metric("tollgate_penalty_refusals_unrecorded_total") > 0
    assert tollgate.metric("tollgate_counters_bytes") <= limit
    livez = lambda: tollgate.call(tollgate.http, "/livez")
    assert livez().code == 200
    assert statistics.median(seconds_of(livez) for _ in range(50)) < 0.1
    begun, used = time.monotonic(), tollgate.metric("process_cpu_seconds_total")

    def share_of_a_core():
        passed = time.monotonic() - begun
        return passed > 2 and (tollgate.metric("process_cpu_seconds_total") - used) / passed < 0.1

    eventually("without calls the processor is idle", share_of_a_core, 30.0)
