"""What tests/run takes of pytest: with CI=true a test may be skipped only for want of a tool that is called optional, and
tests that share what they start run in one process."""

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


# pytest-xdist 3.8 ignores groups beside pytest 9.2.
def test_tests_of_one_group_run_in_one_process(tmp_path):
    processes = tmp_path / "processes"
    (tmp_path / "test_one.py").write_text(f"""
import os, pytest
@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(8))
def test_one(number):
    with open({str(processes)!r}, "a") as file:
        file.write(f"{{os.getpid()}}\\n")
""")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup", tmp_path]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stdout
    ran = processes.read_text().split()
    assert (len(ran), len(set(ran))) == (8, 1)
