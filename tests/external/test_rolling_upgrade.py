"""tests/external/roll_from: the rolling upgrade between two builds, here from the current build to itself."""

import subprocess
import sys

import pytest

from processes import ROOT, TOLLGATE

pytestmark = pytest.mark.tools


def test_roll_from_same_build_loses_nothing():
    command = [sys.executable, ROOT / "tests" / "external" / "roll_from", TOLLGATE]

    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing lost" in done.stdout
