"""The example clients in five languages, and grpcurl, against the real service."""

import re
import time

import pytest

import clients
from processes import ROOT

ALLOWED, USAGE, DENIED = 0, 1, 2

RULES = """
    domain: edge
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 3, algorithm: token_bucket}
      - key: group
        rate_limit: {unit: year, requests_per_unit: 10, algorithm: fixed_window}
        descriptors:
          - key: user
            rate_limit: {unit: year, requests_per_unit: 1, algorithm: fixed_window}
      - key: free
        rate_limit: {unlimited: true}
      - key: turn
        rate_limit: {unit: minute, requests_per_unit: 1, algorithm: leaky_queue, burst: 5}
"""
FENCE = {"go": "go", "java": "java", "node": "js", "python": "python", "rust": "rust"}
ENDING = {"go": "go", "java": "java", "node": "js", "python": "py", "rust": "rs"}


@pytest.fixture(scope="session", params=clients.TOOLS)
def client(request):
    missing = clients.missing(request.param)
    if missing:
        pytest.skip(f"the client in {request.param}: not installed: {', '.join(missing)}")
    return clients.build(request.param)


@pytest.fixture
def tollgate(rule_file, start_tollgate):
    return start_tollgate(rule_file(RULES))


def told(done):
    """The one line that a client printed, and its exit code."""
    lines = done.stdout.splitlines()
    assert len(lines) == 1, (done.stdout, done.stderr)
    return lines[0], done.returncode


def verdict_without_answer(done):
    """Verdict, gRPC's name of the failure in the spelling of the protocol, and exit code."""
    line, code = told(done)
    verdict, name = line.split(" no_answer=")
    return verdict, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper(), code


def test_it_allows_until_the_limit_is_reached_and_then_tells_the_wait(client, tollgate):
    question = ["--domain", "edge", "user=ann"]

    assert told(client.run(tollgate.grpc, *question)) == ("allowed remaining=2 retry_after=0", ALLOWED)
    assert told(client.run(tollgate.grpc, *question, "--hits", "2")) == ("allowed remaining=0 retry_after=0", ALLOWED)
    line, code = told(client.run(tollgate.grpc, *question))

    wait = re.fullmatch(r"denied remaining=0 retry_after=(\d+)", line)
    assert wait and code == DENIED, (line, code)
    # One token of three in a minute comes back after 20 s, or a bit less: the questions took some of it.
    assert 5 <= int(wait[1]) <= 20


def test_several_entries_make_one_descriptor_in_their_order(client, tollgate):
    question = ["--domain", "edge", "group=red,user=a=b"]

    assert told(client.run(tollgate.grpc, *question)) == ("allowed remaining=0 retry_after=0", ALLOWED)
    assert client.run(tollgate.grpc, *question).returncode == DENIED
    assert told(client.run(tollgate.grpc, "--domain", "edge", "group=red")) == (
        "allowed remaining=9 retry_after=0",
        ALLOWED,
    )
    assert tollgate.remaining(("group", "red"), ("user", "a=b")) == 0


def test_where_no_limit_applies_nothing_is_said_to_remain(client, tollgate):
    done = client.run(tollgate.grpc, "--domain", "edge", "free=lunch")

    assert told(done) == ("allowed remaining=unlimited retry_after=0", ALLOWED)


def test_when_the_service_is_down_the_flag_decides(client, nobody):
    question = ["--domain", "edge", "user=ann"]

    assert verdict_without_answer(client.run(nobody, *question)) == ("allowed", "UNAVAILABLE", ALLOWED)
    done = client.run(nobody, *question, "--on-error", "deny")

    assert verdict_without_answer(done) == ("denied", "UNAVAILABLE", DENIED)
    assert done.stderr.strip(), "the reason is for whoever looks"


def test_a_deadline_is_kept_while_the_service_is_silent(client, silence):
    def seconds(timeout_ms):
        begin = time.monotonic()
        done = client.run(silence, "--domain", "edge", "user=ann", "--on-error", "deny", timeout_ms=timeout_ms)
        verdict, name, code = verdict_without_answer(done)
        assert (verdict, code) == ("denied", DENIED)
        # Rust's gRPC gives its own deadline the second name.
        assert name in ("DEADLINE_EXCEEDED", "CANCELLED"), done.stderr
        return time.monotonic() - begin

    # What the program takes to start is in both and differs by less than the deadlines do.
    short, long = seconds(200), seconds(3_200)

    assert 3.2 <= long
    assert 1 <= long - short


def test_the_service_hears_of_the_deadline_and_refuses_a_turn_that_comes_later(client, tollgate):
    question = ["--domain", "edge", "turn=mine"]

    assert client.run(tollgate.grpc, *question).returncode == ALLOWED
    begin = time.monotonic()
    line, code = told(client.run(tollgate.grpc, *question, timeout_ms=20_000))

    assert (line.split()[0], code) == ("denied", DENIED)
    assert time.monotonic() - begin < 20, "at once, and not at the deadline"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--domain", "edge"],
        ["user=ann"],
        ["--domain", "edge", "user"],
        ["--domain", "edge", "=ann"],
        ["--domain", "edge", "user=ann", "--hits", "0"],
        ["--domain", "edge", "user=ann", "--hits", "many"],
        ["--domain", "edge", "user=ann", "--on-error", "shrug"],
        ["--domain", "edge", "user=ann", "--no-such-flag"],
    ],
    ids=["no descriptor", "no domain", "no value", "no key", "hits 0", "hits no number", "on-error", "unknown flag"],
)
def test_bad_arguments_are_neither_allowed_nor_denied(client, nobody, arguments):
    done = client.run(nobody, *arguments)

    assert (done.returncode, done.stdout) == (USAGE, ""), "a script must not take it for an answer"
    assert done.stderr.strip()


def test_grpcurl_asks_by_reflection(tollgate):
    if clients.missing("go"):
        pytest.skip("grpcurl: go is not installed")
    done = clients.grpcurl(tollgate.grpc)

    assert done.returncode == 0, done.stderr
    assert '"overallCode": "OK"' in done.stdout


def test_the_generated_go_code_is_that_of_the_protocol_files(tmp_path):
    if clients.missing("go"):
        pytest.skip("the generated Go code: go is not installed")
    clients.generate_go(tmp_path)

    there = clients.EXAMPLES / "go" / "gen"
    names = [path.relative_to(tmp_path) for path in sorted(tmp_path.rglob("*.go"))]
    assert names == [path.relative_to(there) for path in sorted(there.rglob("*.go"))]
    for name in names:
        # Compilers of the protocol write the same code and different versions of themselves.
        made, kept = (re.sub(r"(?m)^// .*protoc .*$", "", (at / name).read_text()) for at in (tmp_path, there))
        assert made == kept, f"{name}: run `go generate` in examples/go"


@pytest.mark.parametrize("language", clients.TOOLS)
def test_the_lines_on_the_main_page_are_lines_of_the_clients(language):
    [lines] = clients.blocks((ROOT / "README.md").read_text(), FENCE[language])
    sources = (clients.EXAMPLES / language).rglob(f"[Ll]imiter.{ENDING[language]}")
    there = {line.strip() for path in sources for line in path.read_text().splitlines()}

    assert [line for line in lines.splitlines() if line.strip() not in there | {""}] == []
