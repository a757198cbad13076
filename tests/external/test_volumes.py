"""tests/external/volumes in small, so that the command itself stays in order."""

import subprocess
import sys

import pytest

from processes import ROOT

pytestmark = pytest.mark.tools


def test_small_volumes_hold_their_bounds():
    command = [sys.executable, ROOT / "tests" / "external" / "volumes"]
    command += ["--flaps", "16", "--shutdowns", "8", "--keys", "200000"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
