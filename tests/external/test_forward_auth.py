"""Gateways that ask over HTTP: /check, with a real NGINX and a real HAProxy, as docs/gateways/forward-auth.md shows."""

import pytest

import gateway_configs
from processes import free_port, http_call

RULES = """
    domain: edge
    descriptors:
      - {key: user, rate_limit: {unit: year, requests_per_unit: 2}}
"""
TEMPLATE = "user={x-user|optional};route=shop,address={x-real-ip}"
GATEWAY = {"x-real-ip": "10.0.0.1"}


def example(language):
    """The example of the page in this language."""
    return gateway_configs.examples("gateways/forward-auth.md", language)[0]


@pytest.fixture
def start_checked(rule_file, start_tollgate):
    def start(*flags, rules=RULES, **options):
        flags = ["--check-domain", "edge", "--check-descriptors", TEMPLATE, "--headers-ratelimit", "true", *flags]
        return start_tollgate(rule_file(rules), flags=flags, **options)

    return start


def codes(address, count, user):
    return [http_call(address, "/", headers={"x-user": user}).code for _ in range(count)]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_check_decides_by_headers(start_checked, method):
    tollgate = start_checked()
    answers = [http_call(tollgate.http, "/check", method, GATEWAY | {"x-user": "ann"}) for _ in range(3)]
    assert [answer.code for answer in answers] == [200, 200, 429]
    assert [answer.headers["ratelimit-remaining"] for answer in answers] == ["1", "0", "0"]
    assert http_call(tollgate.http, "/check", method, GATEWAY).code == 200, "no user, and no limit for the address"
    of_page = GATEWAY | {"x-user": "ann", "origin": "http://shop"}
    assert http_call(tollgate.http, "/check", method, of_page).code == 429
    answer = http_call(tollgate.http, "/check", method, {"x-user": "ann"})
    assert (answer.code, answer.body) == (400, "the header x-real-ip is missing or empty\n")


def test_check_without_rules_answers_with_failure_status(start_checked):
    given = {"rules": "domain: edge\ndescriptors: [{}]", "ready": False}
    tollgate = start_checked(**given)
    assert http_call(tollgate.http, "/check", headers=GATEWAY).code == 503
    tollgate = start_checked("--check-failure-status", "200", **given)
    assert http_call(tollgate.http, "/check", headers=GATEWAY).code == 200


def test_check_is_served_only_if_set(start_tollgate, rule_file):
    assert http_call(start_tollgate(rule_file(RULES)).http, "/check").code == 404


def test_nginx_refuses_what_tollgate_refuses(start_checked, start_gateway, echo, tmp_path):
    tollgate, port = start_checked("--check-denied-status", "403"), free_port()
    config = gateway_configs.nginx(tmp_path, port, tollgate.http, echo.address, example("nginx"))
    nginx = start_gateway(port, *config)

    first = http_call(nginx, "/", headers={"x-user": "ann"})
    assert (first.code, first.headers["ratelimit-remaining"]) == (200, "1")
    assert codes(nginx, 2, "ann") == [200, 429]
    assert codes(nginx, 2, "bob") == [200, 200]
    assert len(echo.requests) == 4
    tollgate.kill()
    assert codes(nginx, 1, "eve") == [500]


def test_haproxy_refuses_what_tollgate_refuses(start_checked, start_gateway, echo, tmp_path):
    tollgate, port = start_checked(), free_port()
    config = gateway_configs.haproxy(tmp_path, port, tollgate.http, echo.address, example("haproxy"))
    haproxy = start_gateway(port, *config)

    assert codes(haproxy, 3, "ann") == [200, 200, 429]
    assert codes(haproxy, 2, "bob") == [200, 200]
    assert len(echo.requests) == 4
    tollgate.kill()
    assert codes(haproxy, 1, "eve") == [503]
