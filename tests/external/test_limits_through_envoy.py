"""What a client sees when a real Envoy asks Tollgate."""

import math
import time

import pytest

from bootstraps import bootstrap, generic, header, rate_limit, route

# Windows of a year end only once in a year, and so not in the middle of a test.
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
def test_the_limit_passes_and_the_rest_is_refused(edge, echo, algorithm):
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
    assert len(echo.requests) == 10, "only what passed reached the upstream"


def test_a_token_bucket_passes_its_burst_at_once(edge):
    rules = """
        domain: edge
        descriptors:
          - key: user
            rate_limit: {unit: year, requests_per_unit: 100, algorithm: token_bucket, burst: 4}
    """
    _, envoy = edge(rules, route("/", rate_limit(header("user"))))

    assert envoy.codes(7, x_user="ann") == [200] * 4 + [429] * 3


def test_the_headers_tell_limit_remaining_and_reset(edge):
    rules = """
        domain: edge
        descriptors:
          - key: user
            rate_limit: {unit: year, requests_per_unit: 2, name: yearly}
    """
    _, envoy = edge(rules, route("/", rate_limit(header("user"))))

    before = time.time()
    answers = [envoy.get(x_user="ann") for _ in range(3)]
    after = time.time()

    assert [answer.code for answer in answers] == [200, 200, 429]
    for answer in answers:
        assert answer.headers["x-ratelimit-limit"] == f'2, 2;w={YEAR_SECONDS};name="yearly"'
    assert [answer.headers["x-ratelimit-remaining"] for answer in answers] == ["1", "0", "0"]
    latest, earliest = (math.ceil(YEAR_SECONDS - moment % YEAR_SECONDS) for moment in (before, after))
    for answer in answers:
        assert earliest <= int(answer.headers["x-ratelimit-reset"]) <= latest
    assert "x-envoy-ratelimited" in answers[2].headers


def test_the_headers_speak_of_the_strictest_of_several_limits(edge):
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

    answer = envoy.get(x_user="ann", x_group="red")

    assert answer.headers["x-ratelimit-limit"].startswith("3, ")
    assert answer.headers["x-ratelimit-remaining"] == "2"


@pytest.mark.parametrize("on_denied, left_for_the_group", [("charge_none", 7), ("charge_all", 5)])
def test_a_call_refused_by_one_limit_charges_the_other_as_on_denied_says(edge, on_denied, left_for_the_group):
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

    # The last of the budget tells the same: every member of the group has three of their own.
    members = [f"member-{number}" for number in range(11)]
    codes = [envoy.get(x_user=member, x_group="red").code for member in members]
    assert codes == [200] * left_for_the_group + [429] * (11 - left_for_the_group)


def test_nested_exempt_banned_and_shadow_rules_do_what_they_say(edge):
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


def test_tokens_are_looked_at_before_and_charged_when_the_stream_is_done(edge):
    rules = """
        domain: edge
        on_denied: charge_none
        descriptors:
          - key: team
            rate_limit: {unit: year, requests_per_unit: 100, algorithm: fixed_window, overdraft: true}
    """
    look = rate_limit(header("team"), hits_addend={"number": 0})
    charge = rate_limit(header("team"), hits_addend={"format": "%RESP(x-tokens-used)%"}, apply_on_stream_done=True)
    tollgate, envoy = edge(rules, route("/", look, charge))
    team = ("team", "red")

    first = envoy.get(x_team="red", x_tokens="40")
    assert (first.code, first.headers["x-ratelimit-remaining"]) == (200, "100"), "a look takes nothing"
    tollgate.await_remaining(60, team)

    # It may run over, once: what is left is enough for the look.
    assert envoy.get(x_team="red", x_tokens="70").code == 200
    tollgate.await_remaining(0, team)

    assert envoy.codes(2, x_team="red", x_tokens="1") == [429] * 2
    assert envoy.get(x_team="blue", x_tokens="1").code == 200, "another team has its own"


def test_a_refused_stream_charges_no_tokens(edge):
    rules = """
        domain: edge
        on_denied: charge_none
        descriptors:
          - key: team
            rate_limit: {unit: year, requests_per_unit: 100, algorithm: fixed_window}
          - key: user
            rate_limit: {unit: year, requests_per_unit: 1}
    """
    look = rate_limit(header("team"), hits_addend={"number": 0})
    charge = rate_limit(header("team"), hits_addend={"format": "%RESP(x-tokens-used)%"}, apply_on_stream_done=True)
    tollgate, envoy = edge(rules, route("/", rate_limit(header("user")), look, charge))

    codes = envoy.codes(3, x_user="ann", x_team="red", x_tokens="10")

    assert codes == [200, 429, 429]
    # A later charge comes after everything that the refused streams may have sent.
    assert envoy.get(x_user="bob", x_team="red", x_tokens="10").code == 200
    tollgate.await_remaining(80, ("team", "red"))


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


def test_a_limit_from_dynamic_metadata_takes_the_place_of_the_rule(edge):
    filters, limit = override("YEAR")
    _, envoy = edge(FIVE_FOR_EACH_USER, route("/", limit), filters=filters)

    answer = envoy.get(x_user="ann")

    assert answer.headers["x-ratelimit-limit"] == f"2, 2;w={YEAR_SECONDS}"
    assert envoy.codes(3, x_user="ann") == [200, 429, 429]


def test_a_limit_in_a_unit_that_envoy_does_not_know_leaves_the_rule_in_force(edge):
    filters, limit = override("FORTNIGHT")
    _, envoy = edge(FIVE_FOR_EACH_USER, route("/", limit), filters=filters)

    assert envoy.codes(7, x_user="ann") == [200] * 5 + [429] * 2


def test_a_limit_in_the_unit_unknown_is_refused_as_a_question_and_harms_nobody(edge):
    filters, limit = override("UNKNOWN")
    routes = route("/bad", limit), route("/", rate_limit(header("user")))
    tollgate, envoy = edge(FIVE_FOR_EACH_USER, *routes, filters=filters, failure_mode_deny=True)

    assert envoy.get("/bad", x_user="ann").code == 500, "the call is an error"
    tollgate.must_run()
    assert envoy.codes(6, x_user="ann") == [200] * 5 + [429]
