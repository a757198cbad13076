"""Processes whose system clocks step, jump ahead and are corrected, or differ."""

import os
import pathlib
import random
import time

import pytest

from processes import eventually, http_call
from rls import descriptor, rate_limit_request

# libfaketime: installed, or unpacked by tests/run.
LIBRARIES = [
    os.environ.get("LIBFAKETIME", ""),
    *map(str, pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")),
]
LIBRARY = next((path for path in LIBRARIES if path and pathlib.Path(path).exists()), None)

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="not installed: libfaketime")


class SetClock:
    """Runs a process with a settable system clock; its monotonic clock is not affected."""

    def __init__(self, file):
        self.file = file
        self.set("+0")
        self.prefix = [
            "env",
            f"LD_PRELOAD={LIBRARY}",
            f"FAKETIME_TIMESTAMP_FILE={file}",
            "FAKETIME_NO_CACHE=1",
            "DONT_FAKE_MONOTONIC=1",
        ]
        self.call = http_call

    def set(self, offset):
        """Steps the clock to this offset from the clock of the machine."""
        new = self.file.with_suffix(".new")
        new.write_text(f"{offset}\n")
        new.rename(self.file)


@pytest.mark.extended
def test_replica_with_corrected_clock_relinks_and_keeps_limits(make_cluster, callers, tmp_path):
    cluster = make_cluster()
    clock = SetClock(tmp_path / "clock")
    [stepped_replica] = cluster.start(sandbox=clock)
    [other] = cluster.start()

    def stepped(direction):
        eventually(
            f"the clock steps {direction}",
            lambda: stepped_replica.metric("tollgate_clock_steps_total", direction=direction) == 1,
        )

    clock.set("+3d")
    stepped("forward")
    # A bucket is used up while the clock is ahead.
    assert callers.call(stepped_replica.grpc, descriptor(("bucket", "ahead"), hits=10)).passes
    clock.set("+0")
    stepped("back")
    assert any("was corrected" in event.get("message", "") for event in stepped_replica.events())

    # The other replica restarts, so that every link is new and certificates are verified again.
    cluster.remove(other)
    [other] = cluster.start()

    passed = [callers.call(to, descriptor(("user", "ann"))).passes for to in [stepped_replica.grpc, other.grpc] * 10]
    assert sum(passed) == 10, "exactly the limit"
    assert not callers.call(stepped_replica.grpc, descriptor(("bucket", "ahead"))).passes, "nothing is freed"


STEP_RULES = """
    domain: edge
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 40, algorithm: fixed_window}
      - key: short
        rate_limit: {unit: second, requests_per_unit: 1, algorithm: fixed_window}
      - key: bucket
        rate_limit: {unit: second, requests_per_unit: 1, algorithm: token_bucket}
"""
STEPS = 24


@pytest.mark.extended
def test_clock_steps_of_an_hour_free_nothing_and_lock_no_key_out(rule_file, start_tollgate, callers, tmp_path):
    clock = SetClock(tmp_path / "clock")
    tollgate = start_tollgate(rule_file(STEP_RULES), prefix=clock.prefix)
    rng = random.Random(5)
    passed = 0

    for _ in range(STEPS):
        # Steps forwards and backwards by up to an hour each.
        clock.set(f"{rng.randint(-1800, 1800):+d}")
        passed += callers.call(tollgate.grpc, descriptor(("user", "ann"), hits=3)).passes
        for key in ("short", "bucket"):
            # A key that may pass once a second: no step back may make it wait for an hour.
            eventually(
                f"{key} is not locked out",
                lambda key=key: callers.call(tollgate.grpc, descriptor((key, "ann"))).passes,
                # A slew of 1 % over a minute does not matter, but a busy machine does.
                15.0,
            )
        assert tollgate.is_ready()

    assert passed == 40 // 3, "no step gives hits of a long window back"
    assert not [event for event in tollgate.events() if event.get("level") == "ERROR"]


def test_clock_before_1970_ends_the_process_with_its_snapshot(rule_file, start_tollgate, tmp_path):
    clock, counters = SetClock(tmp_path / "clock"), tmp_path / "counters"
    tollgate = start_tollgate(rule_file(STEP_RULES), flags=["--snapshot", counters], prefix=clock.prefix)
    assert tollgate.is_ready()
    clock.set("-70y")
    assert tollgate.wait() == 1
    output = tollgate.output()
    assert "the clock of this machine is not between the years 1970 and 2499" in output
    assert "panicked" not in output
    assert counters.exists()


SKEW_SECONDS = 1500
DAY_SECONDS = 24 * 60 * 60
KEYS_OF_A_KIND = 40
SKEW_RULES = """
    domain: edge
    descriptors:
      - key: user
        rate_limit: {unit: day, requests_per_unit: 10, algorithm: fixed_window}
      - key: bucket
        rate_limit: {unit: day, requests_per_unit: 10, algorithm: token_bucket}
"""


@pytest.mark.extended
def test_replicas_with_skewed_clocks_agree_on_limit_and_reset(make_cluster, callers, tmp_path):
    cluster = make_cluster(rules=SKEW_RULES)
    # Both clocks show the same day for all of the test, also if it runs around midnight.
    to_noon = DAY_SECONDS // 2 - int(time.time()) % DAY_SECONDS
    skewed_clock, usual_clock = SetClock(tmp_path / "skewed"), SetClock(tmp_path / "usual")
    skewed_clock.set(f"{to_noon + SKEW_SECONDS:+d}")
    usual_clock.set(f"{to_noon:+d}")
    [skewed] = cluster.start(sandbox=skewed_clock)
    [usual] = cluster.start(sandbox=usual_clock)
    keys = [(kind, f"name-{number}") for kind in ("bucket", "user") for number in range(KEYS_OF_A_KIND)]

    def ask(replica, hits):
        return callers.call_all([(replica.grpc, rate_limit_request(descriptor(key, hits=hits))) for key in keys])

    # Both replicas own some of the keys, and both are asked.
    assert all(response.passes for replica in (skewed, usual) for response in ask(replica, 3))
    began = time.monotonic()
    resets = [[response.reset_seconds[0] for response in ask(replica, 0)] for replica in (skewed, usual)]
    # The owner's clock decides for both; a peek later may be some seconds nearer to the reset.
    slack = time.monotonic() - began + 1.0
    assert all(abs(one - other) <= slack for one, other in zip(*resets, strict=True))
    windows = resets[0][KEYS_OF_A_KIND:]
    assert max(windows) - min(windows) > SKEW_SECONDS - slack, "the day of each owner's clock"

    cluster.remove(skewed)
    cluster.await_settled()
    answers = ask(usual, 0)
    elapsed = time.monotonic() - began + 1.0
    assert {response.remaining for response in answers} == {(4,)}
    after = [response.reset_seconds[0] for response in answers]
    # A bucket takes the duration along, and not an instant. A window is the day of its owner's clock.
    for before, now in zip(resets[0][:KEYS_OF_A_KIND], after[:KEYS_OF_A_KIND], strict=True):
        assert before - elapsed <= now <= before + 1
    assert max(after[KEYS_OF_A_KIND:]) - min(after[KEYS_OF_A_KIND:]) <= elapsed
    assert sum(response.passes for _ in range(2) for response in ask(usual, 2)) == 2 * len(keys)
    assert not any(response.passes for response in ask(usual, 1))
