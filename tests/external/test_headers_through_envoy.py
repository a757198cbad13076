"""Response headers and access log metadata through a real Envoy."""

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
    """Starts Tollgate with flags, and an Envoy that adds no rate limit headers of its own."""

    def start(*flags, **options):
        tollgate = start_tollgate(rule_file(RULES), flags=flags)
        routes = [route("/", rate_limit(header("user")))]
        return start_envoy(bootstrap([tollgate.grpc], echo.address, routes, own_headers=False, **options))

    return start


def limit_headers(response):
    """The rate limit headers of a response, without the header with which Envoy marks refusals."""
    names = [name for name in response.headers if "ratelimit" in name and not name.startswith("x-envoy")]
    return {name: response.headers[name] for name in response.headers if name in (*names, "retry-after")}


def test_no_header_is_added_by_default(edge):
    envoy = edge()

    response = envoy.get(x_user="ann")

    assert response.code == 200 and limit_headers(response) == {}


def test_x_ratelimit_headers_are_added(edge):
    envoy = edge("--headers-x-ratelimit", "true")

    first, second, third = (envoy.get(x_user="ann") for _ in range(3))

    assert [response.code for response in (first, second, third)] == [200, 200, 429]
    assert [response.headers["x-ratelimit-remaining"] for response in (first, second, third)] == ["1", "0", "0"]
    assert first.headers["x-ratelimit-limit"] == "2" and int(first.headers["x-ratelimit-reset"]) > 0


def test_ratelimit_headers_can_be_renamed(edge):
    envoy = edge("--headers-ratelimit", "true", "--headers-reset-name", "X-Come-Back-In")

    response = envoy.get(x_user="ann")

    assert response.headers["ratelimit-limit"] == "2" and response.headers["ratelimit-remaining"] == "1"
    assert int(response.headers["x-come-back-in"]) > 0 and "ratelimit-reset" not in response.headers


def test_ietf_headers_are_added(edge):
    envoy = edge("--headers-ietf", "true")

    response = envoy.get(x_user="ann")

    assert response.headers["ratelimit-policy"] == '"yearly";q=2;w=31536000'
    assert response.headers["ratelimit"].startswith('"yearly";r=1;t=')


def test_retry_after_is_set_on_refusals_only(edge):
    envoy = edge("--headers-retry-after", "true")

    responses = [envoy.get(x_user="ann") for _ in range(3)]

    assert [limit_headers(response).keys() for response in responses] == [set(), set(), {"retry-after"}]
    assert 0 < int(responses[2].headers["retry-after"]) <= 31_536_000


def test_access_log_names_refusing_rule(edge, tmp_path):
    path = tmp_path / "access.log"
    line = f"%RESPONSE_CODE% {METADATA.format('domain')} {METADATA.format('refused_by')}"
    envoy = edge("--api-dynamic-metadata", "true", access_log=(path, line))

    assert envoy.codes(3, x_user="ann") == [200, 200, 429]

    lines = eventually("three lines", lambda: len(text := path.read_text().splitlines()) == 3 and text)
    assert lines == ["200 edge -", "200 edge -", "429 edge yearly"]
