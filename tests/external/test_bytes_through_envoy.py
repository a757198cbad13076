"""Headers that are not UTF-8 behind a real Envoy, which puts their bytes into descriptors."""

import pytest

from bootstraps import bootstrap, header, rate_limit, route, typed
from processes import run

LIMITS = """
    domain: edge
    on_denied: charge_none
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 2, algorithm: fixed_window}
      - key: remote_address
        rate_limit: {unit: year, requests_per_unit: 6, algorithm: fixed_window}
"""
# As Python sends them, each of these is one byte.
BYTE, OTHER_BYTE, SPELLED = "caf\xe9", "caf\xff", r"caf\xE9"


@pytest.mark.parametrize("failure_mode_deny", [False, True])
def test_header_beyond_utf8_is_limited_with_all_other_limits(
    rule_file, start_tollgate, start_envoy, echo, failure_mode_deny
):
    # With dynamic metadata each answer has the values, which Envoy must be able to read.
    tollgate = start_tollgate(rule_file(LIMITS), flags=["--api-dynamic-metadata", "true"])
    limits = rate_limit(header("user")), rate_limit({"remote_address": {}})
    envoy = start_envoy(
        bootstrap([tollgate.grpc], echo.address, [route("/", *limits)], failure_mode_deny=failure_mode_deny)
    )

    assert envoy.codes(20, x_user=BYTE) == [200] * 2 + [429] * 18
    assert envoy.codes(3, x_user=SPELLED) == [200] * 2 + [429]
    assert envoy.codes(3, x_user=OTHER_BYTE) == [200] * 2 + [429]
    # The limit of the address is used up now.
    assert [envoy.get(x_user=f"\xff{number}").code for number in range(30)] == [429] * 30
    assert envoy.statistic("cluster.upstream.ratelimit.error") == 0

    # The command line reaches the counter by the text that it shows.
    shown = "edge", r"user=caf\xE9"
    assert tollgate.ask(*shown).returncode == 2
    assert run("explain", "--to", tollgate.admin, *shown).returncode == 2
    assert "0 left" in run("counters", "--to", tollgate.admin, *shown).stdout
    assert "now: 2 left" in run("counters", "--to", tollgate.admin, *shown, "--reset").stdout


def test_trace_context_of_a_client_frees_it_of_no_limit(rule_file, start_tollgate, start_envoy, echo):
    tollgate = start_tollgate(rule_file(LIMITS))
    # No collector: spans are dropped, and calls have the trace context.
    collector = {"grpc_service": {"envoy_grpc": {"cluster_name": "upstream"}}, "service_name": "edge"}
    provider = typed("envoy.tracers.opentelemetry", "config.trace.v3.OpenTelemetryConfig", collector)
    routes = [route("/", rate_limit(header("user")))]
    fields = {"tracing": {"provider": provider}}
    envoy = start_envoy(bootstrap([tollgate.grpc], echo.address, routes, manager_fields=fields))
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    # Envoy accepts 60 KiB of headers.
    for size in 100, 17_000, 60_000:
        state = "a=" + "x" * size
        codes = envoy.codes(4, x_user=f"user-{size}", traceparent=parent, tracestate=state)
        assert codes == [200] * 2 + [429] * 2, f"{size} bytes"
    assert envoy.statistic("cluster.upstream.ratelimit.error") == 0
