"""A process whose system clock jumps ahead and is corrected."""

import os
import pathlib

import pytest

from cluster import LONG_FORWARD_BUDGET
from processes import eventually, http_call
from rls import descriptor

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


def test_replica_with_corrected_clock_relinks_and_keeps_limits(make_cluster, callers, tmp_path):
    cluster = make_cluster(flags=LONG_FORWARD_BUDGET)
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
