"""Rate limits of a client behind a real Envoy."""

import json
import math
import time

import pytest

from bootstraps import bootstrap, generic, header, rate_limit, route
from processes import run

# Windows of a year, so that none ends during a test.
YEAR_SECONDS = 365 * 24 * 3600


@pytest.fixture
def edge(rule_file, start_tollgate, start_envoy, echo):
    """Rules and routes in; a running Tollgate and a running Envoy out."""

    def start(rules, *routes, **options):
        tollgate = start_tollgate(rule_file(rules))
        envoy = start_envoy(bootstrap([tollgate.grpc], echo.address, routes, **options))
        return tollgate, envoy

    return start


@pytest.mark.parametrize("algorithm", ["classic", "fixed_window"])
def test_calls_up_to_limit_pass_and_others_are_refused(edge, echo, algorithm):
    named = "" if algorithm == "classic" else f", algorithm: {algorithm}"
    rules = f"""
        domain: edge
        descriptors:
          - key: user
            rate_limit: {{unit: year, requests_per_unit: 5{named}}}
    """
    _, envoy = edge(rules, route("/", rate_limit(header("user"))))

    assert envoy.codes(8, x_user="ann") == [200] * 5 + [429] * 3
    assert envoy.codes(6, x_user="bob") == [200] * 5 + [429]
    assert len(echo.requests) == 10, "only passing requests reached the upstream"


def test_token_bucket_admits_its_burst_at_once(edge):
    rules = """
        domain: edge
        descriptors:
          - key: user
            rate_limit: {unit: year, requests_per_unit: 100, algorithm: token_bucket, burst: 4}
    """
    _, envoy = edge(rules, route("/", rate_limit(header("user"))))

    assert envoy.codes(7, x_user="ann") == [200] * 4 + [429] * 3


def test_envoy_headers_show_limit_remaining_and_reset(edge):
    rules = """
        domain: edge
        descriptors:
          - key: user
            rate_limit: {unit: year, requests_per_unit: 2, name: yearly}
    """
    _, envoy = edge(rules, route("/", rate_limit(header("user"))))

    before = time.time()
    responses = [envoy.get(x_user="ann") for _ in range(3)]
    after = time.time()

    assert [response.code for response in responses] == [200, 200, 429]
    for response in responses:
        assert response.headers["x-ratelimit-limit"] == f'2, 2;w={YEAR_SECONDS};name="yearly"'
    assert [response.headers["x-ratelimit-remaining"] for response in responses] == ["1", "0", "0"]
    latest, earliest = (math.ceil(YEAR_SECONDS - moment % YEAR_SECONDS) for moment in (before, after))
    for response in responses:
        assert earliest <= int(response.headers["x-ratelimit-reset"]) <= latest
    assert "x-envoy-ratelimited" in responses[2].headers


def test_envoy_headers_show_the_limit_of_its_own_of_a_key(rule_file, start_tollgate, start_envoy, echo, tmp_path):
    rules = """
        domain: edge
        descriptors:
          - key: user
            rate_limit:
              {unit: year, requests_per_unit: 2, algorithm: fixed_window,
               own: {requests_per_unit: {max: 100}, unlimited: true}}
          - key: team
            rate_limit:
              {unit: year, requests_per_unit: 2, algorithm: token_bucket, own: {requests_per_unit: {max: 100}}}
    """
    token = tmp_path / "token"
    token.write_text("secret")
    tollgate = start_tollgate(rule_file(rules), flags=("--admin-token-file", token))
    routes = [route("/", rate_limit(header("user")), rate_limit(header("team")))]
    envoy = start_envoy(bootstrap([tollgate.grpc], echo.address, routes))

    def change(verb, key, *flags):
        done = run("limits", verb, "edge", key, *flags, "--to", tollgate.http, "--token-file", token)
        assert done.returncode == 0, done.stderr

    def shown(**headers):
        response = envoy.get(**headers)
        names = ("x-ratelimit-limit", "x-ratelimit-remaining")
        return response.code, *(response.headers.get(name) for name in names)

    year = f"w={YEAR_SECONDS}"
    assert shown(x_user="ann") == (200, f"2, 2;{year}", "1")
    change("set", "user=ann", "--requests-per-unit", "5")
    assert shown(x_user="ann") == (200, f"5, 5;{year}", "3")
    change("set", "user=ann", "--requests-per-unit", "0")
    assert shown(x_user="ann") == (429, f"0, 0;{year}", "0")
    change("set", "user=ann", "--unlimited")
    assert shown(x_user="ann") == (200, None, None)
    change("clear", "user=ann")
    assert shown(x_user="ann") == (429, f"2, 2;{year}", "0")
    assert shown(x_user="bob") == (200, f"2, 2;{year}", "1")
    change("set", "team=red", "--requests-per-unit", "1", "--unit", "week")
    assert shown(x_team="red") == (200, f"1, 1;w={7 * 24 * 3600}", "0")


def test_envoy_headers_show_tightest_limit(edge):
    rules = """
        domain: edge
        descriptors:
          - key: user
            rate_limit: {unit: year, requests_per_unit: 3}
          - key: group
            rate_limit: {unit: year, requests_per_unit: 10}
    """
    limits = rate_limit(header("user")), rate_limit(header("group"))
    _, envoy = edge(rules, route("/", *limits))

    response = envoy.get(x_user="ann", x_group="red")

    assert response.headers["x-ratelimit-limit"].startswith("3, ")
    assert response.headers["x-ratelimit-remaining"] == "2"


@pytest.mark.parametrize("on_denied, left_for_the_group", [("charge_none", 7), ("charge_all", 5)])
def test_refused_call_charges_other_limit_as_on_denied_says(edge, on_denied, left_for_the_group):
    rules = f"""
        domain: edge
        on_denied: {on_denied}
        descriptors:
          - key: user
            rate_limit: {{unit: year, requests_per_unit: 3}}
          - key: group
            rate_limit: {{unit: year, requests_per_unit: 10}}
    """
    both = route("/", rate_limit(header("user")), rate_limit(header("group")))
    tollgate, envoy = edge(rules, both)

    assert envoy.codes(5, x_user="ann", x_group="red") == [200] * 3 + [429] * 2
    assert tollgate.remaining(("group", "red")) == left_for_the_group

    # The rest of the budget confirms it: every member of the group has its own three hits.
    members = [f"member-{number}" for number in range(11)]
    codes = [envoy.get(x_user=member, x_group="red").code for member in members]
    assert codes == [200] * left_for_the_group + [429] * (11 - left_for_the_group)


def test_nested_exempt_banned_and_shadow_rules_apply(edge):
    rules = """
        domain: edge
        descriptors:
          - key: route
            value: api
            descriptors:
              - key: user
                rate_limit: {unit: year, requests_per_unit: 2}
              - key: user
                value: staff
                rate_limit: {unlimited: true}
              - key: user
                value: mallory
                rate_limit: {unit: year, requests_per_unit: 0}
              - key: user
                value: trial-*
                shadow_mode: true
                rate_limit: {unit: year, requests_per_unit: 1}
    """
    tollgate, envoy = edge(rules, route("/", rate_limit(generic("route", "api"), header("user"))))

    assert envoy.codes(3, x_user="ann") == [200, 200, 429]
    assert envoy.codes(4, x_user="staff") == [200] * 4
    assert envoy.codes(2, x_user="mallory") == [429] * 2
    assert envoy.codes(3, x_user="trial-7") == [200] * 3
    assert tollgate.remaining(("route", "api"), ("user", "trial-7")) == 0, "a shadow rule counts"


def test_tokens_are_peeked_first_and_charged_at_stream_end(edge):
    rules = """
        domain: edge
        on_denied: charge_none
        descriptors:
          - key: team
            rate_limit: {unit: year, requests_per_unit: 100, algorithm: fixed_window, overdraft: true}
    """
    peek = rate_limit(header("team"), hits_addend={"number": 0})
    charge = rate_limit(header("team"), hits_addend={"format": "%RESP(x-tokens-used)%"}, apply_on_stream_done=True)
    tollgate, envoy = edge(rules, route("/", peek, charge))
    team = ("team", "red")

    first = envoy.get(x_team="red", x_tokens="40")
    assert (first.code, first.headers["x-ratelimit-remaining"]) == (200, "100"), "a peek charges nothing"
    tollgate.await_remaining(60, team)

    # The last call may overdraw, because some budget remains for the peek.
    assert envoy.get(x_team="red", x_tokens="70").code == 200
    tollgate.await_remaining(0, team)

    assert envoy.codes(2, x_team="red", x_tokens="1") == [429] * 2
    assert envoy.get(x_team="blue", x_tokens="1").code == 200, "another team has its own counter"


def test_refused_stream_charges_no_tokens(edge):
    rules = """
        domain: edge
        on_denied: charge_none
        descriptors:
          - key: team
            rate_limit: {unit: year, requests_per_unit: 100, algorithm: fixed_window}
          - key: user
            rate_limit: {unit: year, requests_per_unit: 1}
    """
    peek = rate_limit(header("team"), hits_addend={"number": 0})
    charge = rate_limit(header("team"), hits_addend={"format": "%RESP(x-tokens-used)%"}, apply_on_stream_done=True)
    tollgate, envoy = edge(rules, route("/", rate_limit(header("user")), peek, charge))

    codes = envoy.codes(3, x_user="ann", x_team="red", x_tokens="10")

    assert codes == [200, 429, 429]
    # A later charge arrives after all charges of the refused streams.
    assert envoy.get(x_user="bob", x_team="red", x_tokens="10").code == 200
    tollgate.await_remaining(80, ("team", "red"))


def test_doctor_names_header_without_which_envoy_asks_nothing(edge, tmp_path):
    rules = """
        domain: edge
        descriptors:
          - key: user
            rate_limit: {unit: year, requests_per_unit: 1}
          - key: route
            value: login
            rate_limit: {unit: year, requests_per_unit: 1}
    """
    skipped = {"request_headers": {"header_name": "x-team", "descriptor_key": "team", "skip_if_absent": True}}
    login = route("/login", rate_limit(generic("route", "login"), skipped))
    tollgate, envoy = edge(rules, login, route("/", rate_limit(header("user"))))

    assert envoy.codes(2, x_user="ann") == [200, 429]
    assert envoy.codes(3) == [200] * 3, "without the header there is no descriptor"
    assert envoy.codes(2, "/login") == [200, 429], "the entries before the header are sent"

    dump = tmp_path / "dump.json"
    dump.write_text(envoy.config_dump())
    done = run("doctor", "--to", tollgate.admin, "--envoy", dump, "--json")
    assert done.returncode == 1, done.stdout
    findings = [one for one in json.loads(done.stdout)["findings"] if one["id"] == "envoy_optional_entry"]
    assert len(findings) == 1, findings
    assert findings[0]["level"] == "warning"
    assert ': header "x-user" of (user) at ' in findings[0]["what"], findings


def override(unit):
    """A filter that puts a limit into the dynamic metadata, and the rate limit that takes it from there."""
    limit = {"requests_per_unit": 2, "unit": unit}
    kind = "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config"
    config = {"@type": kind, "metadata": [{"metadata_namespace": "test", "value": {"limit": limit}}]}
    filters = [{"name": "envoy.filters.http.set_metadata", "typed_config": config}]
    key = {"key": "test", "path": [{"key": "limit"}]}
    return filters, rate_limit(header("user"), limit={"dynamic_metadata": {"metadata_key": key}})


FIVE_FOR_EACH_USER = """
    domain: edge
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 5}
"""


def test_limit_from_dynamic_metadata_overrides_rule(edge):
    filters, limit = override("YEAR")
    _, envoy = edge(FIVE_FOR_EACH_USER, route("/", limit), filters=filters)

    response = envoy.get(x_user="ann")

    assert response.headers["x-ratelimit-limit"] == f"2, 2;w={YEAR_SECONDS}"
    assert envoy.codes(3, x_user="ann") == [200, 429, 429]


def test_override_with_unknown_envoy_unit_keeps_rule(edge):
    filters, limit = override("FORTNIGHT")
    _, envoy = edge(FIVE_FOR_EACH_USER, route("/", limit), filters=filters)

    assert envoy.codes(7, x_user="ann") == [200] * 5 + [429] * 2


def test_override_with_unit_unknown_is_an_error_of_that_call(edge):
    filters, limit = override("UNKNOWN")
    routes = route("/bad", limit), route("/", rate_limit(header("user")))
    tollgate, envoy = edge(FIVE_FOR_EACH_USER, *routes, filters=filters, failure_mode_deny=True)

    assert envoy.get("/bad", x_user="ann").code == 500, "the gRPC call fails"
    tollgate.assert_running()
    assert envoy.codes(6, x_user="ann") == [200] * 5 + [429]
