"""A process whose system clock jumps ahead and is put right."""

import os
import pathlib

import pytest

from cluster import PATIENT
from processes import eventually, http_call
from rls import by

# Debian's package libfaketime: system-wide, or where tests/run has unpacked it.
LIBRARIES = [os.environ.get("LIBFAKETIME", ""), *map(str, pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))]
LIBRARY = next((path for path in LIBRARIES if path and pathlib.Path(path).exists()), None)

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="not installed: libfaketime")


class SetClock:
    """Where a process sees a system clock that can be set; its monotonic clock goes on evenly."""

    def __init__(self, file):
        self.file = file
        self.set("+0")
        self.within = [
            "env",
            f"LD_PRELOAD={LIBRARY}",
            f"FAKETIME_TIMESTAMP_FILE={file}",
            "FAKETIME_NO_CACHE=1",
            "DONT_FAKE_MONOTONIC=1",
        ]
        self.call = http_call

    def set(self, offset):
        """Moves the clock to this distance from the machine's, in one step."""
        new = self.file.with_suffix(".new")
        new.write_text(f"{offset}\n")
        new.rename(self.file)


def test_replica_whose_clock_was_put_right_links_again_and_keeps_limits(make_cluster, callers, tmp_path):
    cluster = make_cluster(flags=PATIENT)
    clock = SetClock(tmp_path / "clock")
    [kept] = cluster.start(space=clock)
    [other] = cluster.start()

    def stepped(direction):
        eventually(
            f"the clock steps {direction}",
            lambda: kept.metric("tollgate_clock_steps_total", direction=direction) == 1,
        )

    clock.set("+3d")
    stepped("forward")
    # While it is ahead, a bucket is used up.
    assert callers.ask(kept.grpc, by(("bucket", "ahead"), hits=10)).passes
    clock.set("+0")
    stepped("back")
    assert any("was corrected" in event.get("message", "") for event in kept.events())

    # The other one restarts: every link is a new one, and certificates are judged by clocks that agree.
    cluster.remove(other)
    [other] = cluster.start()

    passed = [callers.ask(to, by(("user", "ann"))).passes for to in [kept.grpc, other.grpc] * 10]
    assert sum(passed) == 10, "the limit, and no more"
    assert not callers.ask(kept.grpc, by(("bucket", "ahead"))).passes, "nothing is freed"
