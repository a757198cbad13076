"""docs/answers.md: which statistic of Envoy names which cause of a 500."""

import json

import pytest

from bootstraps import bootstrap, cluster, header, rate_limit, route, upstream_tls
from processes import ROOT
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
