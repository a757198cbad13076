"""Connections of TCP behind a real Envoy, with the filter of docs/envoy.md."""

import json
import socket

import pytest
import yaml

from bootstraps import bootstrap
from gateway_configs import examples
from processes import LOOPBACK, eventually

RULES = """
    domain: edge
    descriptors:
      - key: remote_address
        rate_limit: {unit: year, requests_per_unit: 2, algorithm: fixed_window}
"""


@pytest.fixture
def edge(rule_file, start_tollgate, start_envoy, echo):
    """Tollgate, and an Envoy whose listener has the filters of the page."""
    tollgate = start_tollgate(rule_file(RULES))
    filters = next(one for one in examples("envoy.md", "yaml") if one.startswith("filters:"))
    config = json.loads(bootstrap([tollgate.grpc], echo.address, []))
    config["static_resources"]["listeners"][0]["filter_chains"] = [yaml.safe_load(filters)]
    return tollgate, start_envoy(json.dumps(config))


def is_forwarded(envoy):
    """Whether a new connection reaches the upstream, which answers, and is not closed."""
    host, port = envoy.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        try:
            connection.sendall(b"GET / HTTP/1.1\r\nhost: shop\r\n\r\n")
            return connection.recv(12) == b"HTTP/1.1 200"
        except ConnectionError:
            return False


def test_connections_up_to_limit_pass_and_others_are_closed(edge, echo):
    tollgate, envoy = edge
    eventually("Envoy reaches Tollgate", lambda: envoy.healthy("tollgate"))

    assert [is_forwarded(envoy) for _ in range(4)] == [True, True, False, False]

    assert len(echo.requests) == 2, "only passing connections reached the upstream"
    assert tollgate.remaining(("remote_address", LOOPBACK)) == 0
