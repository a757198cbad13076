"""Response headers and access log metadata through a real Envoy."""

import re

import pytest

from bootstraps import bootstrap, header, rate_limit, route
from processes import ROOT, eventually

RULES = """
    domain: edge
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 2, name: yearly}
"""
PAGE = (ROOT / "docs" / "answers.md").read_text().partition("\n## Headers of answers\n")[2].partition("\n## ")[0]
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


def blocks(language):
    """The blocks of this language in the section about headers."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def without_times(text):
    """A text whose times and hashes are the same in every run."""
    text = re.sub(r"\b(t=|reset: |come-back-in: |retry-after: |retry-after-ms: )\d+", r"\1#", text)
    return re.sub(r"pk=:[A-Za-z0-9+/]{11}=:", "pk=#", text)


def shown(response):
    """A response as the page shows it."""
    reason = {200: "OK", 429: "Too Many Requests"}[response.code]
    names = ("ratelimit", "retry", "come-back")
    lines = [f"{name}: {value}" for name, value in response.headers.items() if any(part in name for part in names)]
    lines = [line for line in lines if not line.startswith("x-envoy")]
    return "\n".join([f"HTTP/1.1 {response.code} {reason}", *lines])


@pytest.mark.parametrize("block", blocks("http"), ids=lambda block: block.splitlines()[0].replace(" ", ","))
def test_client_sees_the_headers_of_the_page(block, rule_file, start_tollgate, start_envoy, echo):
    settings, *answers = block.strip().split("\n\n")
    flags = []
    for setting in settings.split(" "):
        name, value = setting.split("=")
        flags += ["--" + name.replace(".", "-").replace("_", "-"), value]
    tollgate = start_tollgate(rule_file(blocks("yaml")[0]), flags=flags)
    path = {"request_headers": {"header_name": ":path", "descriptor_key": "path"}}
    routes = [route("/", rate_limit(path), rate_limit(header("user")), rate_limit(header("tenant")))]
    envoy = start_envoy(bootstrap([tollgate.grpc], echo.address, routes, own_headers=False))

    responses = [envoy.get("/search", x_user="ann", x_tenant="shop") for _ in range(4)]

    assert [response.code for response in responses] == [200, 200, 200, 429]
    for response, answer in zip((responses[0], responses[3]), answers, strict=True):
        assert without_times(shown(response)) == without_times(answer)


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
