"""The example clients in five languages and grpcurl, against the real service."""

import re
import time

import pytest

import clients

pytestmark = pytest.mark.extended

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


def printed(done):
    """The single line of output of a client, and its exit code."""
    lines = done.stdout.splitlines()
    assert len(lines) == 1, (done.stdout, done.stderr)
    return lines[0], done.returncode


def verdict_without_response(done):
    """Verdict, name of the gRPC status in protocol spelling, and exit code."""
    line, code = printed(done)
    verdict, name = line.split(" no_answer=")
    return verdict, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper(), code


def test_client_allows_up_to_limit_then_prints_retry_after(client, tollgate):
    arguments = ["--domain", "edge", "user=ann"]

    assert printed(client.run(tollgate.grpc, *arguments)) == ("allowed remaining=2 retry_after=0", ALLOWED)
    assert printed(client.run(tollgate.grpc, *arguments, "--hits", "2")) == (
        "allowed remaining=0 retry_after=0",
        ALLOWED,
    )
    line, code = printed(client.run(tollgate.grpc, *arguments))

    wait = re.fullmatch(r"denied remaining=0 retry_after=(\d+)", line)
    assert wait and code == DENIED, (line, code)
    # One token of three per minute refills after at most 20 s, less the time of the earlier calls.
    assert 5 <= int(wait[1]) <= 20


def test_several_entries_form_one_ordered_descriptor(client, tollgate):
    arguments = ["--domain", "edge", "group=red,user=a=b"]

    assert printed(client.run(tollgate.grpc, *arguments)) == ("allowed remaining=0 retry_after=0", ALLOWED)
    assert client.run(tollgate.grpc, *arguments).returncode == DENIED
    assert printed(client.run(tollgate.grpc, "--domain", "edge", "group=red")) == (
        "allowed remaining=9 retry_after=0",
        ALLOWED,
    )
    assert tollgate.remaining(("group", "red"), ("user", "a=b")) == 0


def test_client_without_matching_limit_prints_unlimited(client, tollgate):
    done = client.run(tollgate.grpc, "--domain", "edge", "free=lunch")

    assert printed(done) == ("allowed remaining=unlimited retry_after=0", ALLOWED)


def test_on_error_flag_decides_while_service_is_down(client, closed_port):
    arguments = ["--domain", "edge", "user=ann"]

    assert verdict_without_response(client.run(closed_port, *arguments)) == ("allowed", "UNAVAILABLE", ALLOWED)
    done = client.run(closed_port, *arguments, "--on-error", "deny")

    assert verdict_without_response(done) == ("denied", "UNAVAILABLE", DENIED)
    assert done.stderr.strip(), "the reason is on stderr"


def test_client_keeps_deadline_while_service_is_silent(client, silent_server):
    def seconds(timeout_ms):
        begin = time.monotonic()
        done = client.run(silent_server, "--domain", "edge", "user=ann", "--on-error", "deny", timeout_ms=timeout_ms)
        verdict, name, code = verdict_without_response(done)
        assert (verdict, code) == ("denied", DENIED)
        # tonic reports its own deadline with the second name.
        assert name in ("DEADLINE_EXCEEDED", "CANCELLED"), done.stderr
        return time.monotonic() - begin

    # Both include the start-up time of the client, which differs by less than the deadlines.
    short, long = seconds(200), seconds(3_200)

    assert 3.2 <= long
    assert 1 <= long - short


def test_client_deadline_refuses_later_queue_turn_at_once(client, tollgate):
    arguments = ["--domain", "edge", "turn=mine"]

    assert client.run(tollgate.grpc, *arguments).returncode == ALLOWED
    begin = time.monotonic()
    line, code = printed(client.run(tollgate.grpc, *arguments, timeout_ms=20_000))

    assert (line.split()[0], code) == ("denied", DENIED)
    assert time.monotonic() - begin < 20, "refused at once, not at the deadline"


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
def test_bad_client_arguments_are_neither_allowed_nor_denied(client, closed_port, arguments):
    done = client.run(closed_port, *arguments)

    assert (done.returncode, done.stdout) == (USAGE, ""), "a script must not read it as a decision"
    assert done.stderr.strip()


def test_grpcurl_calls_by_reflection(tollgate):
    if clients.missing("go"):
        pytest.skip("grpcurl: go is not installed")
    done = clients.grpcurl(tollgate.grpc)

    assert done.returncode == 0, done.stderr
    assert '"overallCode": "OK"' in done.stdout


@pytest.mark.parametrize("folder", [clients.EXAMPLES / "go", clients.PACKAGES / "go"], ids=["example", "package"])
def test_generated_go_code_matches_proto_files(tmp_path, folder):
    if clients.missing("go"):
        pytest.skip("the generated Go code: go is not installed")
    clients.generate_go(folder, tmp_path)

    there = folder / "gen"
    names = [path.relative_to(tmp_path) for path in sorted(tmp_path.rglob("*.go"))]
    assert names == [path.relative_to(there) for path in sorted(there.rglob("*.go"))]
    for name in names:
        # The header names the version of protoc, which may differ.
        made, kept = (re.sub(r"(?m)^// .*protoc .*$", "", (at / name).read_text()) for at in (tmp_path, there))
        assert made == kept, f"{name}: run `go generate` in {folder}"


@pytest.mark.parametrize("language", clients.TOOLS)
def test_readme_snippets_are_lines_of_the_clients(language):
    [lines] = clients.blocks((clients.EXAMPLES / "README.md").read_text(), FENCE[language])
    sources = (clients.EXAMPLES / language).rglob(f"[Ll]imiter.{ENDING[language]}")
    there = {line.strip() for path in sources for line in path.read_text().splitlines()}

    assert [line for line in lines.splitlines() if line.strip() not in there | {""}] == []
