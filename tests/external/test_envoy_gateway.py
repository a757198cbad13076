"""Tollgate in the place of the rate limit service of Envoy Gateway, and of Envoy AI Gateway.

The variables, files and command are those of the Deployment that Envoy Gateway 1.9 renders; the resources have the
shapes that its translator makes of its examples.
"""

import pytest

from bootstraps import bootstrap, generic, rate_limit, route, upstream_tls
from control_plane import NODE, limit, metric, needs_control_plane, rules
from processes import LISTENERS, LOOPBACK, TOLLGATE, Process, Tollgate, eventually
from test_tls import Authority, needs_openssl

pytestmark = [pytest.mark.extended, needs_control_plane]


# A gateway may pass an argument that envoyproxy/ratelimit ignores.
UNKNOWN_ARGUMENT = "--quotaRateLimitServiceAddr=0.0.0.0:18002"


class Pod(Tollgate):
    """The container of the rate limit service: everything in variables."""

    def __init__(self, variables, directory):
        # The image has this link.
        command = directory / "bin" / "ratelimit"
        command.parent.mkdir(exist_ok=True)
        if not command.is_symlink():
            command.symlink_to(TOLLGATE)
        # Variables of Tollgate count before those of the reference, so that this test uses free ports.
        own = {f"TOLLGATE_{name.upper()}__LISTEN": f"{LOOPBACK}:0" for name in LISTENERS}
        own |= {"TOLLGATE_LOG__FORMAT": "json", "TOLLGATE_DRAIN__DELAY": "0s"}
        if variables.get("CONFIG_TYPE") == "GRPC_XDS_SOTW":
            # As in the image.
            own["TOLLGATE_RULES__PATH"] = "/etc/tollgate/rules"
        given = [f"{name}={value}" for name, value in (variables | own).items()]
        Process.__init__(self, ["env", *given, command, UNKNOWN_ARGUMENT], directory / "pod.log")


@pytest.fixture
def start_pod_of_gateway(cleanup, tmp_path):
    def start(variables):
        pod = Pod(variables, tmp_path)
        cleanup.callback(pod.stop)
        pod.await_listening()
        return pod

    return start


def of_envoy_gateway(server, certs):
    """The variables that Envoy Gateway sets. The address of Redis is a dummy."""
    return {
        "RUNTIME_ROOT": "/data",
        "RUNTIME_SUBDIRECTORY": "ratelimit",
        "RUNTIME_IGNOREDOTFILES": "true",
        "RUNTIME_WATCH_ROOT": "false",
        "LOG_LEVEL": "info",
        "USE_STATSD": "false",
        "CONFIG_TYPE": "GRPC_XDS_SOTW",
        "CONFIG_GRPC_XDS_SERVER_URL": server,
        "CONFIG_GRPC_XDS_NODE_ID": NODE,
        "GRPC_SERVER_USE_TLS": "true",
        "GRPC_SERVER_TLS_CERT": certs / "tls.crt",
        "GRPC_SERVER_TLS_KEY": certs / "tls.key",
        "GRPC_SERVER_TLS_CA_CERT": certs / "ca.crt",
        "CONFIG_GRPC_XDS_SERVER_USE_TLS": "true",
        "CONFIG_GRPC_XDS_CLIENT_TLS_CERT": certs / "tls.crt",
        "CONFIG_GRPC_XDS_CLIENT_TLS_KEY": certs / "tls.key",
        "CONFIG_GRPC_XDS_SERVER_TLS_CACERT": certs / "ca.crt",
        "FORCE_START_WITHOUT_INITIAL_CONFIG": "true",
        "REDIS_SOCKET_TYPE": "tcp",
        "REDIS_URL": "redis.invalid:6379",
        "USE_PROMETHEUS": "true",
        "PROMETHEUS_ADDR": ":19001",
        "PROMETHEUS_MAPPER_YAML": "/etc/statsd-exporter/conf.yaml",
    }


@pytest.fixture
def certs(tmp_path):
    """The Secret that is mounted at /certs: one authority, one certificate."""
    authority = Authority(tmp_path / "certs")
    cert, key = authority.sign("tls", f"DNS:envoy-ratelimit,IP:{LOOPBACK}")
    assert {cert.name, key.name, authority.cert.name} == {"tls.crt", "tls.key", "ca.crt"}
    return authority


@pytest.fixture
def gateway(certs, start_control_plane):
    """The control plane of Envoy Gateway, with mutual TLS."""
    cert, key = certs.sign("gateway", f"DNS:envoy-gateway,IP:{LOOPBACK}")
    return start_control_plane(flags=["-cert", cert, "-key", key, "-client-ca", certs.cert])


def chain(domain, leaf, *steps):
    """A resource with one rule below these steps; each is a name that is key and value."""
    for step in reversed(steps):
        leaf = {"key": step, "value": step, "descriptors": [leaf], "shadowMode": leaf.get("shadowMode", False)}
    return rules(domain, leaf)


@needs_openssl
def test_pod_of_envoy_gateway_limits_through_envoy(gateway, certs, start_pod_of_gateway, start_envoy, echo):
    pod = start_pod_of_gateway(of_envoy_gateway(gateway.address, certs.folder))
    gateway.await_request("a subscription", lambda one: one["node"] == NODE)

    # Without a Gateway there is no snapshot, and the control plane is silent.
    assert pod.call(pod.http, "/healthcheck").code == 200
    gateway.serve("1", chain("edge", {"key": "rule-0-match-0", "value": "rule-0-match-0", **limit(3)}, "route-a"))
    gateway.await_accepted("1")

    path = [generic("route-a", "route-a"), generic("rule-0-match-0", "rule-0-match-0")]
    tls = upstream_tls(certs.cert)
    envoy = start_envoy(bootstrap([pod.grpc], echo.address, [route("/", rate_limit(*path))], tls=tls))
    eventually("tollgate is healthy in envoy", lambda: envoy.healthy("tollgate"))
    assert envoy.codes(5) == [200] * 3 + [429] * 2
    labels = 'domain="edge",key1="route-a_route-a",key2="rule-0-match-0_rule-0-match-0"'
    assert metric(pod, f"ratelimit_service_rate_limit_over_limit{{{labels}}}") == 2
    assert metric(pod, f"ratelimit_service_rate_limit_total_hits{{{labels}}}") == 5
    assert pod.call(pod.http, "/healthcheck").code == 200

    [chosen] = [event for event in pod.events() if event["message"] == "chose the store of the counters"]
    assert chosen["store"] == "memory" and ".invalid" in chosen["reason"]
    warnings = [event for event in pod.events() if "no effect" in event["message"]]
    of_arguments = [event for event in warnings if "arguments" in event]
    assert [event["arguments"] for event in of_arguments] == [UNKNOWN_ARGUMENT], "once"
    warnings = [event for event in warnings if "variables" in event]
    assert len(warnings) == 1, "once"
    for variable in ("REDIS_URL", "GRPC_SERVER_TLS_CA_CERT", "PROMETHEUS_MAPPER_YAML", "USE_STATSD"):
        assert variable in warnings[0]["variables"]
    for variable in ("CONFIG_TYPE", "LOG_LEVEL", "GRPC_SERVER_USE_TLS"):
        assert variable not in warnings[0]["variables"]


@needs_openssl
def test_shapes_of_envoy_gateway_limit_as_they_say(gateway, certs, start_pod_of_gateway):
    pod = start_pod_of_gateway(of_envoy_gateway(gateway.address, certs.folder))
    host = "httproute/default/backend/rule/0/match/0/www_example_com"
    masked = {"key": "masked_remote_address", "value": "192.168.0.0/16"}
    masked["descriptors"] = [{"key": "remote_address", **limit(1, "WEEK")}]
    gateway.serve(
        "1",
        chain("default/eg/http", {"key": "rule-0-match-0", "value": "rule-0-match-0", **limit(2, "MONTH")}, host),
        chain("masked", masked, host),
        chain("method", {"key": "rule-0-method", "value": "rule-0-method", **limit(1)}, host),
        chain("banned", {"key": "rule-0-match-0", **limit(0, "SECOND")}, host),
        chain("free", {"key": "rule-0-match-0", "rateLimit": {"unlimited": True}}, host),
        chain("shadow", {"key": "a", "value": "a", "shadowMode": True, **limit(0)}, host, "rule-0-match-0"),
        chain("costly", {"key": "rule-0-match-0", **limit(10), "detailedMetric": True}, host),
    )
    gateway.await_accepted("1")

    def code(domain, *entries):
        return pod.ask_with_tls(certs.cert, domain, ",".join([f"{host}={host}", *entries]))

    one = "rule-0-match-0=rule-0-match-0"
    assert [code("default/eg/http", one) for _ in range(3)] == [0, 0, 2]
    address = ("masked_remote_address=192.168.0.0/16", "remote_address=192.168.3.4")
    assert [code("masked", *address) for _ in range(2)] == [0, 2]
    assert [code("method", "rule-0-method=rule-0-method") for _ in range(2)] == [0, 2]
    assert code("banned", one) == 2
    assert [code("free", one) for _ in range(3)] == [0] * 3
    assert code("shadow", one, "a=a") == 0
    assert code("costly", one) == 0
    assert pod.rules()["warnings"] == [], "shadow mode stands on every step"


def test_quota_of_envoy_ai_gateway_in_plaintext(start_control_plane, start_pod_of_gateway):
    node, domain = "envoy-ai-gateway-ratelimit", "ai-gateway-quota"
    control_plane = start_control_plane(node=node)
    leaves = [{"key": "tokens", "value": name, "quotaMode": True, **limit(1)} for name in ("a", "b")]
    control_plane.serve("1", rules(domain, {"key": "backend", "value": "x", "descriptors": leaves}))
    pod = start_pod_of_gateway(
        {
            "CONFIG_TYPE": "GRPC_XDS_SOTW",
            "CONFIG_GRPC_XDS_SERVER_URL": control_plane.address,
            "CONFIG_GRPC_XDS_NODE_ID": node,
        }
    )
    pod.await_ready()
    first, second = "backend=x,tokens=a", "backend=x,tokens=b"
    assert pod.ask(domain, first).returncode == 0
    assert pod.ask(domain, first, second).returncode == 0, "a call is refused only if all of its quotas refuse"
    assert pod.ask(domain, first, second).returncode == 2


def test_files_and_switches_of_the_reference_are_read(start_pod_of_gateway, tmp_path):
    folder = tmp_path / "ratelimit" / "config"
    folder.mkdir(parents=True)
    one = "{unit: year, requests_per_unit: 1}"
    (folder / "edge.yaml").write_text(f"{{domain: edge, descriptors: [{{key: user, rate_limit: {one}}}]}}")
    pod = start_pod_of_gateway(
        {
            "RUNTIME_ROOT": tmp_path,
            "RUNTIME_SUBDIRECTORY": "ratelimit",
            "LIMIT_RESPONSE_HEADERS_ENABLED": "true",
            "LIMIT_REMAINING_HEADER": "x-left",
            "SHADOW_MODE": "t",
        }
    )
    pod.await_ready()
    request = '{"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}'
    headers = {"content-type": "application/json"}
    answers = [pod.call(pod.http, "/json", "POST", headers, request) for _ in range(2)]
    assert [answer.code for answer in answers] == [200, 200], "shadow mode"
    given = answers[0].json()["responseHeadersToAdd"]
    assert {"key": "x-left", "value": "0"} in given, given
