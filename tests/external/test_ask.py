"""The command `tollgate ask`."""

import json
import socket

import pytest

from processes import http_call, run

PASSED, NO_ANSWER, OVER_LIMIT, NO_RULE, USAGE = 0, 1, 2, 3, 64

RULES = """
    domain: edge
    on_denied: charge_none
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 3, algorithm: fixed_window, name: per_user}
      - key: group
        rate_limit: {unit: year, requests_per_unit: 10, algorithm: fixed_window}
        descriptors:
          - key: user
            rate_limit: {unit: year, requests_per_unit: 1, algorithm: fixed_window}
      - key: staff
        rate_limit: {unlimited: true}
      - key: beta
        value: true
        rate_limit: {unit: year, requests_per_unit: 1, algorithm: fixed_window}
"""


@pytest.fixture
def tollgate(rule_file, start_tollgate):
    return start_tollgate(rule_file(RULES))


def test_ask_passes_until_limit_is_reached(tollgate):
    codes = [tollgate.ask("edge", "user=ann").returncode for _ in range(4)]

    assert codes == [PASSED, PASSED, PASSED, OVER_LIMIT]


def test_ask_prints_limit_name_and_remaining(tollgate):
    done = tollgate.ask("edge", "user=ann")

    assert "per_user" in done.stdout
    assert "2" in done.stdout
    assert done.stderr == ""


def test_several_hits_are_charged_all_or_none(tollgate):
    assert tollgate.ask("edge", "user=ann", "--hits", "2").returncode == PASSED
    for _ in range(3):
        assert tollgate.ask("edge", "user=ann", "--hits", "2").returncode == OVER_LIMIT
        assert tollgate.remaining(("user", "ann")) == 1
    assert tollgate.ask("edge", "user=ann").returncode == PASSED


def test_peek_charges_nothing_and_refund_restores(tollgate):
    peeks = [tollgate.ask("edge", "user=ann", "--peek").returncode for _ in range(5)]
    assert peeks == [PASSED] * 5
    assert tollgate.ask("edge", "user=ann", "--hits", "3").returncode == PASSED
    assert tollgate.ask("edge", "user=ann", "--peek").returncode == OVER_LIMIT

    assert tollgate.ask("edge", "user=ann", "--refund", "2").returncode == PASSED
    assert tollgate.remaining(("user", "ann")) == 2
    assert tollgate.ask("edge", "user=ann", "--refund", "50").returncode == PASSED
    assert tollgate.remaining(("user", "ann")) == 3, "at most the limit"


def test_several_descriptors_are_sent_in_one_call(tollgate):
    assert tollgate.ask("edge", "user=ann", "group=red").returncode == PASSED
    assert tollgate.ask("edge", "user=ann", "group=red", "--hits", "3").returncode == OVER_LIMIT

    assert tollgate.remaining(("user", "ann")) == 2
    assert tollgate.remaining(("group", "red")) == 9, "a refused call charges nothing"


def test_nested_entries_and_escaped_separators_are_parsed(tollgate):
    assert tollgate.ask("edge", "group=red,user=ann").returncode == PASSED
    assert tollgate.ask("edge", "group=red,user=ann").returncode == OVER_LIMIT

    assert tollgate.ask("edge", r"user=a\,b\=c").returncode == PASSED
    assert tollgate.remaining(("user", "a,b=c")) == 2


def test_yaml_boolean_value_is_text(tollgate):
    assert [tollgate.ask("edge", "beta=true").returncode for _ in range(2)] == [PASSED, OVER_LIMIT]
    assert tollgate.ask("edge", "beta=false", "--hits", "9").returncode == NO_RULE


def test_json_output_equals_http_response(tollgate):
    done = tollgate.ask("edge", "user=ann", "--peek", "--json")

    request = {"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "ann"}], "hitsAddend": "0"}]}
    response = http_call(tollgate.http, "/json", "POST", body=json.dumps(request)).json()
    printed = json.loads(done.stdout)
    for one in (printed, response):
        for status in one["statuses"]:
            status.pop("durationUntilReset")
    assert printed == response


@pytest.mark.parametrize(
    ("domain", "descriptors", "code", "line"),
    [
        ("elsewhere", ["user=ann"], NO_RULE, "user=ann: no rule for this domain"),
        ("edge", ["usr=ann"], NO_RULE, "usr=ann: no rule for this descriptor"),
        ("edge", ["usr=ann", "user=ann"], PASSED, "usr=ann: no rule for this descriptor"),
        ("edge", ["staff=ann"], PASSED, "staff=ann: unlimited"),
    ],
    ids=["domain", "key", "one of two keys", "unlimited"],
)
def test_request_without_a_rule_passes_with_a_code_of_its_own(tollgate, domain, descriptors, code, line):
    asked = tollgate.ask(domain, *descriptors)
    explained = run("explain", "--to", tollgate.admin, domain, *descriptors)

    assert (asked.returncode, explained.returncode) == (code, code)
    assert asked.stdout.splitlines()[:2] == ["passed", f"  {line}"]
    assert tollgate.remaining(("user", "ann")) == (2 if "user=ann" in descriptors and domain == "edge" else 3)


def test_ask_without_server_exits_with_no_answer():
    # Bound but not listening, so that no other process can take the port.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        done = run("ask", "--to", f"127.0.0.1:{taken.getsockname()[1]}", "edge", "user=ann")

    assert done.returncode == NO_ANSWER
    assert done.stderr.strip()


def test_empty_domain_is_an_error_and_no_pass(tollgate):
    done = tollgate.ask("", "user=ann")

    assert done.returncode == NO_ANSWER
    assert done.stderr.strip()


@pytest.mark.parametrize(
    "arguments",
    [
        ["edge"],
        ["edge", "user"],
        ["edge", "user=ann", "--hits", "many"],
        ["edge", "user=ann", "--hits", "1", "--peek"],
        ["edge", "user=ann", "--no-such-flag"],
        ["edge", "user=ann", "--to", "nowhere"],
    ],
    ids=["no descriptor", "no value", "hits no number", "hits and peek", "unknown flag", "no port"],
)
def test_bad_ask_arguments_are_neither_pass_nor_refusal(tollgate, arguments):
    to = [] if "--to" in arguments else ["--to", tollgate.grpc]
    done = run("ask", *to, *arguments)

    assert done.returncode == USAGE, "a script must not read it as a decision"
    assert done.stderr.strip()
    assert tollgate.remaining(("user", "ann")) == 3
