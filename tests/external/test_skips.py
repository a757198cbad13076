"""With CI=true a test may be skipped only for want of a tool that tests/run calls optional."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent


@pytest.mark.parametrize(
    "reason, passes",
    [
        ("java: not installed: mvn", True),
        ("network namespaces: root is required", True),
        ("javac: not installed", False),
        ("not installed: java", False),
    ],
)
def test_skip_passes_only_for_whole_name_of_optional_tool(tmp_path, reason, passes):
    (tmp_path / "test_one.py").write_text(f"import pytest\ndef test_one():\n    pytest.skip({reason!r})\n")
    numbers = tmp_path / "skipped"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "conftest", "-n", "1", tmp_path]
    variables = {"CI": "true", "OPTIONAL_TOOLS": "java,network namespaces", "SKIPPED_TESTS": str(numbers)}
    variables["PYTHONPATH"] = str(HERE)

    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == (0 if passes else 1), done.stdout
    assert numbers.read_text() == ("1\n" if passes else "0\n")
