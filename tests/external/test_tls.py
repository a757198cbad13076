"""Envoy calls Tollgate over mutual TLS, and over a Unix socket."""

import os
import shutil
import subprocess
import threading

import pytest
import yaml

import clients
from bootstraps import bootstrap, header, rate_limit, route, upstream_tls
from processes import ROOT, eventually, run

THREE_FOR_EACH_USER = """
    domain: edge
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 3}
"""
PLENTY_FOR_EACH_USER = THREE_FOR_EACH_USER.replace("3}", "1000000000}")
ROUTES = [route("/", rate_limit(header("user")))]
ENVOYS_NAME = "spiffe://shop/edge"

needs_openssl = pytest.mark.skipif(
    not shutil.which("openssl"), reason="openssl: not installed; it creates the certificates"
)


class Authority:
    """A certificate authority in its own directory."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.cert, self.key = folder / "ca.crt", folder / "ca.key"
        new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        openssl("req", "-x509", *new, "-keyout", self.key, "-out", self.cert, "-subj", f"/CN={folder.name}")

    def sign(self, name, names):
        """The paths of a new certificate for `names` (in the syntax of openssl), and of its key."""
        cert, key, request, more = (self.folder / f"{name}.{end}" for end in ("crt", "key", "csr", "ext"))
        new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        openssl("req", *new, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        more.write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
        signer = ["-CA", self.cert, "-CAkey", self.key, "-CAcreateserial"]
        openssl("x509", "-req", "-in", request, *signer, "-days", "2", "-extfile", more, "-out", cert)
        return cert, key


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=20)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "authority")


@pytest.fixture
def start_with_tls(authority, rule_file, start_tollgate):
    """A Tollgate with a certificate of the authority that accepts only Envoy."""

    def start(rules, *more):
        cert, key = authority.sign("tollgate", "DNS:localhost,IP:127.0.0.1")
        flags = ["--grpc-tls-cert", cert, "--grpc-tls-key", key, "--grpc-tls-client-ca", authority.cert]
        flags += ["--grpc-tls-client-san", ENVOYS_NAME, "--tls-poll-interval", "100ms", *more]
        return start_tollgate(rule_file(rules), flags=flags)

    return start


@needs_openssl
def test_envoy_and_tollgate_verify_each_other(authority, start_with_tls, start_envoy, echo):
    tollgate = start_with_tls(THREE_FOR_EACH_USER)
    tls = upstream_tls(authority.cert, *authority.sign("envoy", f"URI:{ENVOYS_NAME}"))
    envoy = start_envoy(bootstrap([tollgate.grpc], echo.address, ROUTES, failure_mode_deny=True, tls=tls))

    assert envoy.codes(5, x_user="ann") == [200] * 3 + [429] * 2
    assert envoy.statistic("cluster.tollgate.ssl.handshake") >= 1


@needs_openssl
def test_transport_socket_of_migration_page_reaches_tollgate(
    authority, rule_file, start_tollgate, start_envoy, echo
):
    (block,) = clients.blocks((ROOT / "docs" / "migrating.md").read_text(), "yaml")
    cert, key = authority.sign("tollgate", "DNS:tollgate-headless.shop.svc")
    envoys_cert, envoys_key = authority.sign("envoy", f"URI:{ENVOYS_NAME}")
    for name, path in (("tls.crt", envoys_cert), ("tls.key", envoys_key), ("ca.crt", authority.cert)):
        assert f"/etc/envoy/tollgate/{name}" in block
        block = block.replace(f"/etc/envoy/tollgate/{name}", str(path))
    flags = ["--grpc-tls-cert", cert, "--grpc-tls-key", key, "--grpc-tls-client-ca", authority.cert]
    tollgate = start_tollgate(rule_file(THREE_FOR_EACH_USER), flags=flags)
    settings = {"failure_mode_deny": True, "tls": yaml.safe_load(block)}
    envoy = start_envoy(bootstrap([tollgate.grpc], echo.address, ROUTES, **settings))

    assert envoy.codes(5, x_user="ann") == [200] * 3 + [429] * 2


@needs_openssl
@pytest.mark.parametrize(
    "presented", ["no certificate", "another name", "another authority", "an authority unknown to envoy"]
)
def test_wrong_certificates_get_no_reply(authority, start_with_tls, start_envoy, echo, tmp_path, presented):
    tollgate = start_with_tls(THREE_FOR_EACH_USER)
    other = Authority(tmp_path / "other")
    tls = {
        "no certificate": lambda: upstream_tls(authority.cert),
        "another name": lambda: upstream_tls(authority.cert, *authority.sign("envoy", "URI:spiffe://shop/other")),
        "another authority": lambda: upstream_tls(authority.cert, *other.sign("envoy", f"URI:{ENVOYS_NAME}")),
        "an authority unknown to envoy": lambda: upstream_tls(
            other.cert, *authority.sign("envoy", f"URI:{ENVOYS_NAME}")
        ),
    }[presented]()
    envoy = start_envoy(bootstrap([tollgate.grpc], echo.address, ROUTES, failure_mode_deny=True, tls=tls))

    assert envoy.codes(3, x_user="ann") == [500] * 3
    assert echo.requests == []


@needs_openssl
def test_certificate_rotation_under_load_fails_no_call(authority, start_with_tls, start_envoy, echo):
    tollgate = start_with_tls(PLENTY_FOR_EACH_USER, "--grpc-max-connection-age", "300ms")
    tls = upstream_tls(authority.cert, *authority.sign("envoy", f"URI:{ENVOYS_NAME}"))
    envoy = start_envoy(bootstrap([tollgate.grpc], echo.address, ROUTES, failure_mode_deny=True, tls=tls))
    eventually("tollgate is healthy in envoy", lambda: envoy.healthy("tollgate"))
    codes, stopped = [], threading.Event()

    def load():
        while not stopped.wait(0.005):
            codes.append(envoy.get(x_user="ann").code)

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, 4):
            replace(authority, number)
            eventually("the new certificate is active", lambda: reloads(tollgate) == number)
            connections = envoy.statistic("cluster.tollgate.upstream_cx_total")
            eventually(
                "envoy has reconnected",
                lambda: envoy.statistic("cluster.tollgate.upstream_cx_total") >= connections + 2,
            )
    finally:
        stopped.set()
        for thread in threads:
            thread.join()

    assert len(codes) > 50
    assert set(codes) == {200}
    assert envoy.statistic("cluster.upstream.ratelimit.error") == 0


def replace(authority, number):
    """Replaces the certificate and key of Tollgate."""
    cert, key = authority.sign(f"tollgate-{number}", "DNS:localhost,IP:127.0.0.1")
    os.replace(key, authority.folder / "tollgate.key")
    os.replace(cert, authority.folder / "tollgate.crt")


def reloads(tollgate):
    return sum(event.get("message") == "loaded new certificates" for event in tollgate.events())


def test_bad_certificates_refuse_start_and_name_setting(rule_file, tmp_path):
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    listen = [part for name in ("grpc", "http", "admin") for part in (f"--{name}-listen", "127.0.0.1:0")]

    done = run(
        "serve", "--rules", rule_file(THREE_FOR_EACH_USER), *listen, "--grpc-tls-cert", bad, "--grpc-tls-key", bad
    )

    assert done.returncode == 1
    assert "grpc.tls_cert" in done.stdout + done.stderr
    assert "listening" not in done.stdout + done.stderr


def test_envoy_calls_over_unix_socket(rule_file, start_tollgate, start_envoy, echo, tmp_path):
    path = tmp_path / "tollgate.sock"
    tollgate = start_tollgate(rule_file(THREE_FOR_EACH_USER), grpc=f"unix:{path}")
    assert tollgate.grpc == f"unix:{path}"
    envoy = start_envoy(bootstrap([tollgate.grpc], echo.address, ROUTES, failure_mode_deny=True))

    assert envoy.codes(5, x_user="ann") == [200] * 3 + [429] * 2
    assert tollgate.ask("edge", "user=ann").returncode == 2

    tollgate.terminate()
    assert tollgate.wait() == 0
    assert not path.exists()
    # A killed process leaves its socket file behind, and the next one replaces it.
    start_tollgate(rule_file(THREE_FOR_EACH_USER), grpc=f"unix:{path}").kill()
    assert path.exists()
    start_tollgate(rule_file(THREE_FOR_EACH_USER), grpc=f"unix:{path}")
    eventually("tollgate is healthy again", lambda: envoy.get(x_user="bob").code == 200)
