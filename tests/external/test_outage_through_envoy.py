"""Envoy while Tollgate is down, restarts, drains or is replaced."""

import pytest

from bootstraps import bootstrap, header, rate_limit, route
from load import EdgeLoad
from processes import eventually, http_call

THREE_FOR_EACH_USER = """
    domain: edge
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 3}
"""
PLENTY_FOR_EACH_USER = THREE_FOR_EACH_USER.replace("3}", "1000000000}")
ROUTES = [route("/", rate_limit(header("user")))]


@pytest.mark.parametrize("failure_mode_deny, code", [(False, 200), (True, 500)])
def test_envoy_applies_failure_mode_deny_while_tollgate_is_down(
    rule_file, start_tollgate, start_envoy, echo, failure_mode_deny, code
):
    rules = rule_file(THREE_FOR_EACH_USER)
    tollgate = start_tollgate(rules)
    envoy = start_envoy(bootstrap([tollgate.grpc], echo.address, ROUTES, failure_mode_deny=failure_mode_deny))
    assert envoy.codes(5, x_user="ann") == [200] * 3 + [429] * 2

    tollgate.kill()
    assert envoy.codes(5, x_user="ann") == [code] * 5
    assert envoy.statistic("cluster.upstream.ratelimit.error") == 5

    start_tollgate(rules, grpc=tollgate.grpc)
    eventually("tollgate is healthy again", lambda: envoy.healthy("tollgate"))
    assert envoy.codes(5, x_user="bob") == [200] * 3 + [429] * 2


def test_calls_that_arrive_during_the_drain_delay_are_answered(rule_file, start_tollgate, start_envoy, echo):
    tollgate = start_tollgate(rule_file(THREE_FOR_EACH_USER), drain_delay="5s")
    envoy = start_envoy(bootstrap([tollgate.grpc], echo.address, ROUTES, failure_mode_deny=True))
    assert envoy.get(x_user="ann").code == 200

    tollgate.terminate()
    eventually("the process is no longer ready", lambda: http_call(tollgate.http, "/readyz").code == 503)
    assert http_call(tollgate.http, "/livez").code == 200, "a draining process is alive"
    codes = envoy.codes(50, x_user="ann")

    tollgate.assert_running()
    assert codes == [200] * 2 + [429] * 48
    assert tollgate.wait() == 0


def test_two_instances_replaced_in_turn_under_load_fail_no_call(rule_file, start_tollgate, start_envoy, echo):
    rules = rule_file(PLENTY_FOR_EACH_USER)
    instances = [start_tollgate(rules, drain_delay="2s") for _ in range(2)]
    addresses = [instance.grpc for instance in instances]
    envoy = start_envoy(bootstrap(addresses, echo.address, ROUTES, failure_mode_deny=True))
    eventually("both are healthy", lambda: envoy.healthy_hosts("tollgate") == 2)

    with EdgeLoad(envoy, clients=4) as load:
        for old in instances:
            old.terminate()
            assert old.wait() == 0
            start_tollgate(rules, grpc=old.grpc)
            eventually("both are healthy again", lambda: envoy.healthy_hosts("tollgate") == 2)
            load.await_calls(50)

    assert load.failures() == []
    assert envoy.statistic("cluster.upstream.ratelimit.error") == 0
