"""What the pages show of clients of Envoy's protocol, against the real service: the example in Python, and grpcurl."""

import re
import shutil

import pytest

import clients
from processes import LOOPBACK, ROOT

# The example is built once.
pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("example")]

ALLOWED, DENIED, USAGE = 0, 2, 64
EXAMPLES = ROOT / "examples"

RULES = """
    domain: edge
    descriptors:
      - key: user
        rate_limit: {unit: hour, requests_per_unit: 2, algorithm: sliding_log}
      - key: group
        rate_limit: {unit: year, requests_per_unit: 10, algorithm: fixed_window}
        descriptors:
          - key: user
            rate_limit: {unit: year, requests_per_unit: 1, algorithm: fixed_window}
      - key: free
        rate_limit: {unlimited: true}
"""


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """Builds the example with the commands of its README, in a copy, and runs it."""
    setup, command = clients.blocks((EXAMPLES / "README.md").read_text(), "sh")
    python, name, *_ = command.split()
    folder = tmp_path_factory.mktemp("repository") / "examples"
    folder.mkdir()
    program = (EXAMPLES / name).read_text()
    assert "TIMEOUT_SECONDS = 0.25\n" in program
    (folder / name).write_text(program)
    # A long deadline, so that a busy machine does not look like an outage.
    (folder / "patient.py").write_text(program.replace("TIMEOUT_SECONDS = 0.25\n", "TIMEOUT_SECONDS = 20\n"))
    shutil.copytree(ROOT / "proto", folder.parent / "proto")
    built = clients.run(["bash", "-euo", "pipefail", "-c", setup], folder, clients.BUILD_TIMEOUT)
    assert built.returncode == 0, built.stderr

    def ask(*arguments, program="patient.py"):
        return clients.run([python, program, *arguments], folder, clients.RUN_TIMEOUT)

    return ask


@pytest.fixture
def tollgate(rule_file, start_tollgate):
    return start_tollgate(rule_file(RULES))


def test_example_allows_up_to_the_limit_then_prints_the_wait(ask, tollgate):
    done = [ask(tollgate.grpc, "edge", "user=ann") for _ in range(3)]

    assert [each.stdout for each in done[:2]] == ["allowed remaining=1\n", "allowed remaining=0\n"]
    wait = re.fullmatch(r"denied remaining=0 retry_after=(\d+)\n", done[2].stdout)
    assert wait and 3_500 < int(wait[1]) <= 3_600, done[2]
    assert [each.returncode for each in done] == [ALLOWED, ALLOWED, DENIED]


def test_example_sends_several_entries_as_one_ordered_descriptor(ask, tollgate):
    assert ask(tollgate.grpc, "edge", "group=red", "user=a=b").stdout == "allowed remaining=0\n"
    assert ask(tollgate.grpc, "edge", "group=red").stdout == "allowed remaining=9\n"
    assert tollgate.remaining(("group", "red"), ("user", "a=b")) == 0


def test_example_without_limit_prints_unlimited(ask, tollgate):
    assert ask(tollgate.grpc, "edge", "free=lunch").stdout == "allowed remaining=unlimited\n"


def test_example_without_answer_allows_and_prints_the_reason(ask, closed_port, silent_server):
    for address, reason in [(closed_port, "UNAVAILABLE"), (silent_server, "DEADLINE_EXCEEDED")]:
        done = ask(address, "edge", "user=ann", program="envoy_client.py")

        assert (done.stdout, done.returncode) == (f"allowed no_answer={reason}\n", ALLOWED)


@pytest.mark.parametrize("arguments", [[], ["edge"], ["edge", "user"]], ids=["no domain", "no entry", "no value"])
def test_example_with_bad_arguments_is_neither_allowed_nor_denied(ask, closed_port, arguments):
    done = ask(closed_port, *arguments)

    assert (done.returncode, done.stdout) == (USAGE, ""), "a script must not read it as a decision"
    assert done.stderr.strip()


def test_grpcurl_calls_by_reflection(tollgate):
    if clients.missing("go"):
        pytest.skip("go: not installed; it builds grpcurl")
    page = (ROOT / "docs" / "envoy.md").read_text()
    command = next(block for block in clients.blocks(page, "sh") if "grpcurl" in block)
    assert f"{LOOPBACK}:8081" in command

    done = clients.run(["bash", "-c", command.replace(f"{LOOPBACK}:8081", tollgate.grpc)], ROOT, clients.BUILD_TIMEOUT)

    assert done.returncode == 0, done.stderr
    assert '"overallCode": "OK"' in done.stdout
