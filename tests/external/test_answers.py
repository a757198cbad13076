"""docs/answers.md: which statistic of Envoy names which cause of a 500, and what a refused client and an access log show."""

import json
import re

import pytest

from bootstraps import bootstrap, cluster, header, rate_limit, route, typed, upstream_tls
from processes import ROOT, eventually
from test_tls import Authority, needs_openssl

PAGE = (ROOT / "docs" / "answers.md").read_text()
ROUTES = [route("/", rate_limit(header("user")))]
RULES = """
    domain: edge
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 3}
"""


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "authority")


@pytest.fixture
def start_with_tls(authority, rule_file, start_tollgate):
    """A Tollgate that has a certificate, as in the production manifests, and wants one."""
    cert, key = authority.sign("tollgate", "DNS:localhost,IP:127.0.0.1")
    flags = ["--grpc-tls-cert", cert, "--grpc-tls-key", key, "--grpc-tls-client-ca", authority.cert]
    return lambda: start_tollgate(rule_file(RULES), flags=flags).grpc


@pytest.fixture
def assert_grows(start_envoy, echo):
    """Asserts that Envoy answers 500 and that the statistic, which the page names, grows."""

    def grows(name, to, timeout="5s", **cluster_keys):
        config = json.loads(bootstrap([to], echo.address, ROUTES, failure_mode_deny=True, timeout=timeout))
        tollgate = next(one for one in config["static_resources"]["clusters"] if one["name"] == "tollgate")
        # Without health checks the calls are the only traffic.
        del tollgate["health_checks"]
        tollgate |= cluster_keys
        envoy = start_envoy(json.dumps(config))

        assert envoy.codes(2, x_user="ann") == [500] * 2
        assert envoy.statistic(f"cluster.tollgate.{name}") >= 2
        assert f"`{name}`" in PAGE

    return grows


def test_refused_connection_is_told_by_its_statistic(assert_grows, closed_port):
    assert_grows("upstream_cx_connect_fail", closed_port)


def test_cluster_without_http2_is_told_by_its_statistic(assert_grows, rule_file, start_tollgate):
    without = cluster("tollgate", [])["typed_extension_protocol_options"]

    to = start_tollgate(rule_file(RULES)).grpc
    assert_grows("upstream_cx_protocol_error", to, typed_extension_protocol_options=without)


@needs_openssl
def test_cluster_without_tls_is_told_by_its_statistic(assert_grows, start_with_tls):
    assert_grows("upstream_cx_destroy_remote_with_active_rq", start_with_tls())


@needs_openssl
def test_untrusted_certificate_is_told_by_its_statistic(assert_grows, start_with_tls, tmp_path):
    another = Authority(tmp_path / "another")

    assert_grows("ssl.fail_verify_error", start_with_tls(), **upstream_tls(another.cert))


def test_late_answer_is_told_by_its_statistic(assert_grows, silent_server):
    assert_grows("upstream_rq_504", silent_server, timeout="0.1s")


def test_circuit_breaker_is_told_by_its_statistic(assert_grows, rule_file, start_tollgate):
    none = {"thresholds": [{"max_requests": 0}]}

    assert_grows("upstream_rq_active_overflow", start_tollgate(rule_file(RULES)).grpc, circuit_breakers=none)


def test_error_of_tollgate_is_told_by_its_statistic(assert_grows, rule_file, start_tollgate):
    tollgate = start_tollgate(rule_file("domain: edge\ndescriptors: [{key: user, rate_limit: {}}]"), ready=False)
    # With rules that are refused the process does not wait for others.
    tollgate.await_taking_calls()

    assert_grows("upstream_rq_200", tollgate.grpc)


# What a refused client sees

CLIENT = PAGE.partition("\n## What a refused client sees\n")[2].partition("\n## ")[0]
PATH = {"request_headers": {"header_name": ":path", "descriptor_key": "path"}}


def blocks(language):
    """The blocks of this language in the section."""
    return re.findall(rf"```{language}\n(.*?)```", CLIENT, re.DOTALL)


def logged(line):
    """A line of the access log, with its JSON read: the order of its members may change."""
    text, _, limits = masked(line).partition(" {")
    return text, json.loads("{" + limits.replace("#", "0"))


def masked(text):
    """A text without its times: the window is a year, so each has many digits."""
    return re.sub(r"\d{4,}", "#", text)


@pytest.fixture
def start_edge(rule_file, start_tollgate, start_envoy, echo):
    """An Envoy in front of a Tollgate with the rules of the section. `change` changes its configuration."""

    def start(routes, change=None, **options):
        flags = ["--headers-retry-after", "true", "--api-dynamic-metadata", "true"]
        tollgate = start_tollgate(rule_file(blocks("yaml")[0]), flags=flags)
        config = json.loads(bootstrap([tollgate.grpc], echo.address, routes, own_headers=False, **options))
        if change:
            change(config)
        return start_envoy(json.dumps(config))

    return start


def test_refused_client_sees_the_bodies_of_the_page(start_edge):
    envoy = start_edge([route("/", rate_limit(PATH))])

    shown = blocks("http")
    assert len(shown) == 4
    for block in shown:
        request, head, body = block.split("\n\n", 2)
        _, path = request.split(" ")
        status, *headers = head.splitlines()
        assert envoy.get(path).code == 200
        response = envoy.get(path)
        assert status == f"HTTP/1.1 {response.code} Too Many Requests"
        assert masked(response.body.strip()) == masked(body.strip())
        for line in headers:
            name, _, value = line.partition(": ")
            assert masked(response.headers[name]) == masked(value)
        assert ("content-type" in response.headers) == ("content-type" in head)


def test_grpc_client_gets_the_body_as_its_message(start_edge):
    envoy = start_edge([route("/", rate_limit(PATH))])

    envoy.get("/json")
    response = envoy.get("/json", content_type="application/grpc", te="trailers")

    assert (response.headers["content-type"], response.headers["grpc-status"]) == ("application/grpc", "14")
    assert '"limits":["free_plan"]' in response.headers["grpc-message"]


def test_access_log_has_the_lines_of_the_page(start_edge, tmp_path):
    path, (line, shown) = tmp_path / "access.log", blocks("text")
    envoy = start_edge([route("/", rate_limit(PATH))], access_log=(path, line.strip()))

    shown = shown.splitlines()
    for line in shown:
        envoy.get(line.split(" ")[0])

    lines = eventually("all lines", lambda: len(text := path.read_text().splitlines()) == len(shown) and text)
    assert [logged(line) for line in lines] == [logged(line) for line in shown]


def test_service_gets_metadata_of_the_limit(start_edge):
    value = re.search(r"`(%DYNAMIC_METADATA\(envoy[^`]*\)%)`", CLIENT)[1]
    # The service returns this header as another one.
    told = {"request_headers_to_add": [{"header": {"key": "x-tokens", "value": value}}]}
    envoy = start_edge([route("/", rate_limit(PATH)) | told])

    assert envoy.get("/json").headers["x-tokens-used"] == "free"


def test_route_is_chosen_by_the_outcome_of_a_limit(start_edge):
    match = json.loads(blocks("json")[0])
    above = {"match": match, "direct_response": {"status": 202}}

    def choose_the_route_again(config):
        """After the rate limit filter, as the page says."""
        lua = {"default_source_code": {"inline_string": blocks("lua")[0]}}
        manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        manager["http_filters"].insert(-1, typed("envoy.filters.http.lua", "extensions.filters.http.lua.v3.Lua", lua))

    envoy = start_edge([above, route("/", rate_limit(PATH))], change=choose_the_route_again)

    assert envoy.codes(3, "/slow") == [200, 202, 202]
    assert envoy.codes(2, "/plain") == [200, 429]
