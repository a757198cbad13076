"""Shutdown of a replica that cannot hand off its slots: bounded, and with a log line."""

import signal
import time

import pytest

from processes import eventually
from rls import descriptor, rate_limit_request

KEYS = [("user", f"name-{number}") for number in range(60)]
NOT_HANDED_OFF = "left the cluster with slots that were not handed off"


@pytest.fixture
def leave_frozen_peer(start_cluster, callers):
    """A replica whose only peer is frozen, so that it cannot hand off its slots, and which has received SIGTERM."""

    def start(*flags):
        # Nothing is decided after the freeze.
        cluster = start_cluster(2, drain_delay="0s", flags=flags, may_degrade=True)
        leaving, frozen = cluster.replicas
        calls = [(leaving.grpc, rate_limit_request(descriptor(key))) for key in KEYS]
        assert all(response.passes for response in callers.call_all(calls))
        slots = leaving.metric("tollgate_cluster_slots")
        frozen.freeze()
        leaving.terminate()
        eventually("the replica drains", lambda: leaving.event("draining"))
        return leaving, slots

    return start


def assert_names_slots(leaving, slots):
    event = leaving.event(NOT_HANDED_OFF)
    assert event and event["level"] == "WARN", leaving.output()
    # What the link takes may have been sent, but the frozen peer acknowledges nothing.
    assert 0 < event["slots"] <= slots


@pytest.mark.extended
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_second_signal_ends_replica_that_cannot_hand_off(leave_frozen_peer, second):
    leaving, slots = leave_frozen_peer("--drain-timeout", "1h")
    assert leaving.child.poll() is None

    leaving.child.send_signal(second)

    assert leaving.wait() == 0
    event = leaving.event("second stop signal received, stopping without finishing these")
    assert event and event["level"] == "WARN", leaving.output()
    assert 0 < event["slots"] <= slots


@pytest.mark.extended
def test_expired_drain_timeout_ends_replica_that_cannot_hand_off(leave_frozen_peer):
    started = time.monotonic()
    leaving, slots = leave_frozen_peer("--drain-timeout", "3s")

    assert leaving.wait() == 0

    assert time.monotonic() - started > 3.0, "it has tried until the timeout"
    assert leaving.event("drain timeout reached, stopping with open calls")
    assert_names_slots(leaving, slots)


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_stop_signal_hands_off_all_counters(start_cluster, callers, first):
    cluster = start_cluster(2)
    leaving, stays = cluster.replicas
    calls = [(leaving.grpc, rate_limit_request(descriptor(key, hits=4))) for key in KEYS]
    assert all(response.passes for response in callers.call_all(calls))

    cluster.remove(leaving, by=first)

    assert leaving.event("left the cluster") and not leaving.event(NOT_HANDED_OFF)
    peeks = [(stays.grpc, rate_limit_request(descriptor(key, hits=0))) for key in KEYS]
    assert {response.remaining for response in callers.call_all(peeks)} == {(6,)}
