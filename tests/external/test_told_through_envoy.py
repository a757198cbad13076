"""What Tollgate tells a client and an operator through a real Envoy: headers, and metadata in the access log."""

import pytest

from bootstraps import bootstrap, header, rate_limit, route
from processes import eventually

RULES = """
    domain: edge
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 2, name: yearly}
"""
METADATA = "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:{})%"


@pytest.fixture
def edge(rule_file, start_tollgate, start_envoy, echo):
    """Flags of Tollgate in; a running Envoy that adds no headers of its own out."""

    def start(*flags, **options):
        tollgate = start_tollgate(rule_file(RULES), flags=flags)
        routes = [route("/", rate_limit(header("user")))]
        return start_envoy(bootstrap([tollgate.grpc], echo.address, routes, own_headers=False, **options))

    return start


def told(answer):
    """The headers of an answer that speak of limits, without the one that Envoy marks refusals with."""
    names = [name for name in answer.headers if "ratelimit" in name and not name.startswith("x-envoy")]
    return {name: answer.headers[name] for name in answer.headers if name in (*names, "retry-after")}


def test_without_settings_no_header_is_added(edge):
    envoy = edge()

    answer = envoy.get(x_user="ann")

    assert answer.code == 200 and told(answer) == {}


def test_the_three_headers_with_x(edge):
    envoy = edge("--headers-x-ratelimit", "true")

    first, second, third = (envoy.get(x_user="ann") for _ in range(3))

    assert [answer.code for answer in (first, second, third)] == [200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining"] for answer in (first, second, third)] == ["1", "0", "0"]
    assert first.headers["x-ratelimit-limit"] == "2" and int(first.headers["x-ratelimit-reset"]) > 0


def test_the_three_headers_under_other_names(edge):
    envoy = edge("--headers-ratelimit", "true", "--headers-reset-name", "X-Come-Back-In")

    answer = envoy.get(x_user="ann")

    assert answer.headers["ratelimit-limit"] == "2" and answer.headers["ratelimit-remaining"] == "1"
    assert int(answer.headers["x-come-back-in"]) > 0 and "ratelimit-reset" not in answer.headers


def test_the_fields_of_the_draft(edge):
    envoy = edge("--headers-ietf", "true")

    answer = envoy.get(x_user="ann")

    assert answer.headers["ratelimit-policy"] == '"yearly";q=2;w=31536000'
    assert answer.headers["ratelimit"].startswith('"yearly";r=1;t=')


def test_retry_after_stands_on_refusals_only(edge):
    envoy = edge("--headers-retry-after", "true")

    answers = [envoy.get(x_user="ann") for _ in range(3)]

    assert [told(answer).keys() for answer in answers] == [set(), set(), {"retry-after"}]
    assert 0 < int(answers[2].headers["retry-after"]) <= 31_536_000


def test_the_access_log_names_the_rule_that_refused(edge, tmp_path):
    path = tmp_path / "access.log"
    line = f"%RESPONSE_CODE% {METADATA.format('domain')} {METADATA.format('refused_by')}"
    envoy = edge("--api-dynamic-metadata", "true", access_log=(path, line))

    assert envoy.codes(3, x_user="ann") == [200, 200, 429]

    lines = eventually("three lines", lambda: len(text := path.read_text().splitlines()) == 3 and text)
    assert lines == ["200 edge -", "200 edge -", "429 edge yearly"]
