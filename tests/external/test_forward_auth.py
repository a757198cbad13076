"""Gateways that ask over HTTP: /check, with a real NGINX and a real HAProxy, as docs/gateways/forward-auth.md shows."""

import re
import shutil
import socket
import textwrap

import pytest

from processes import LOOPBACK, ROOT, Process, eventually, http_call

RULES = """
    domain: edge
    descriptors:
      - {key: user, rate_limit: {unit: year, requests_per_unit: 2}}
"""
PAGE = (ROOT / "docs" / "gateways" / "forward-auth.md").read_text()
TEMPLATE = "user={x-user};route=shop,address={x-real-ip}"


def example(language):
    """The example of the page in this language."""
    return re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[1]


def free_port():
    """A port that was free a moment ago: these programs do not report the port that they bind."""
    with socket.socket() as bound:
        bound.bind((LOOPBACK, 0))
        return bound.getsockname()[1]


@pytest.fixture
def start_checked(rule_file, start_tollgate):
    def start(*flags, rules=RULES, **options):
        flags = ["--check-domain", "edge", "--check-descriptors", TEMPLATE, "--headers-ratelimit", "true", *flags]
        return start_tollgate(rule_file(rules), flags=flags, **options)

    return start


@pytest.fixture
def start_program(cleanup, tmp_path):
    """Starts a gateway, which listens on `port`."""

    def start(port, *command):
        if shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]}: not installed; tests/run downloads it on Debian and Ubuntu")
        process = Process(command, tmp_path / f"{command[0]}.log")
        cleanup.callback(process.stop)

        def listens():
            process.assert_running()
            with socket.socket() as client:
                return client.connect_ex((LOOPBACK, port)) == 0

        eventually(f"{command[0]} listens", listens)
        return f"{LOOPBACK}:{port}"

    return start


def codes(address, count, user):
    return [http_call(address, "/", headers={"x-user": user}).code for _ in range(count)]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_check_decides_by_headers(start_checked, method):
    tollgate = start_checked()
    answers = [http_call(tollgate.http, "/check", method, {"x-user": "ann"}) for _ in range(3)]
    assert [answer.code for answer in answers] == [200, 200, 429]
    assert [answer.headers["ratelimit-remaining"] for answer in answers] == ["1", "0", "0"]
    forwarded = {"x-forwarded-proto": "http"}
    assert http_call(tollgate.http, "/check", method, forwarded).code == 200, "nothing to decide"
    assert http_call(tollgate.http, "/check", method, {"x-user": "ann", "origin": "http://shop"}).code == 429


def test_check_without_rules_answers_with_failure_status(start_checked):
    given = {"rules": "domain: edge\ndescriptors: [{}]", "ready": False}
    tollgate = start_checked(**given)
    assert http_call(tollgate.http, "/check", headers={"x-user": "ann"}).code == 503
    tollgate = start_checked("--check-failure-status", "200", **given)
    assert http_call(tollgate.http, "/check", headers={"x-user": "ann"}).code == 200


def test_check_is_served_only_if_set(start_tollgate, rule_file):
    assert http_call(start_tollgate(rule_file(RULES)).http, "/check").code == 404


def test_nginx_refuses_what_tollgate_refuses(start_checked, start_program, echo, tmp_path):
    tollgate, port = start_checked("--check-denied-status", "403"), free_port()
    locations = textwrap.indent(example("nginx"), "        ")
    temporary = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"    {name}_temp_path {tmp_path / name};\n" for name in temporary)
    config = tmp_path / "nginx.conf"
    config.write_text(
        f"daemon off;\nmaster_process off;\npid {tmp_path / 'pid'};\nerror_log stderr;\nevents {{}}\nhttp {{\n"
        f"    access_log off;\n{paths}"
        f"    upstream tollgate {{ server {tollgate.http}; }}\n    upstream application {{ server {echo.address}; }}\n"
        f"    server {{\n        listen {LOOPBACK}:{port};\n{locations}    }}\n}}\n"
    )
    nginx = start_program(port, "nginx", "-c", str(config), "-p", str(tmp_path), "-e", "stderr")

    first = http_call(nginx, "/", headers={"x-user": "ann"})
    assert (first.code, first.headers["ratelimit-remaining"]) == (200, "1")
    assert codes(nginx, 2, "ann") == [200, 429]
    assert codes(nginx, 2, "bob") == [200, 200]
    assert len(echo.requests) == 4
    tollgate.kill()
    assert codes(nginx, 1, "eve") == [500]


def test_haproxy_refuses_what_tollgate_refuses(start_checked, start_program, echo, tmp_path):
    tollgate, port = start_checked(), free_port()
    config = example("haproxy")
    for before, after in (
        ("/etc/haproxy/tollgate.lua", str(ROOT / "deploy" / "haproxy" / "tollgate.lua")),
        ("bind :8080", f"bind {LOOPBACK}:{port}"),
        ("tollgate:8080", tollgate.http),
    ):
        assert before in config
        config = config.replace(before, after)
    path = tmp_path / "haproxy.cfg"
    path.write_text(
        "defaults\n    timeout connect 5s\n    timeout client 5s\n    timeout server 5s\n"
        f"{config}\nbackend application\n    mode http\n    server echo {echo.address}\n"
    )
    haproxy = start_program(port, "haproxy", "-db", "-f", str(path))

    assert codes(haproxy, 3, "ann") == [200, 200, 429]
    assert codes(haproxy, 2, "bob") == [200, 200]
    assert len(echo.requests) == 4
    tollgate.kill()
    assert codes(haproxy, 1, "eve") == [503]
