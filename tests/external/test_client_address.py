"""docs/client-address.md: each gateway counts the address of the client, whatever addresses the client invents."""

import http.server
import itertools
import json
import threading

import pytest
import yaml

import bootstraps
import gateway_configs
from processes import LOOPBACK, eventually, free_port, http_call

PAGE = "client-address.md"
RULES = """
    domain: edge
    descriptors:
      - {key: remote_address, rate_limit: {unit: year, requests_per_unit: 2}}
"""
# The network of the balancers of the page; those of the tests connect from the loopback.
BALANCERS, LOCAL_BALANCERS = "10.0.0.0/8", "127.0.0.0/8"
# The client of a request that came through a balancer.
CLIENT = "203.0.113.7"
# The address of the client is that of the connection, or it is in front of that of the balancer.
CLIENTS = {"edge": LOOPBACK, "balancer": CLIENT}
PLACES = pytest.mark.parametrize("place", CLIENTS)


def examples(section, language):
    return gateway_configs.examples(PAGE, language, section)


def template(section, place):
    """The value of `check.descriptors` of a gateway of the page."""
    found = [line.split("'")[1] for line in examples(section, "sh")]
    return found[0 if place == "edge" else -1]


@pytest.fixture
def start_limiter(rule_file, start_tollgate):
    """Starts Tollgate; the template makes descriptors of headers."""

    def start(descriptors=None, *flags):
        check = ["--check-domain", "edge", "--check-descriptors", descriptors, *flags] if descriptors else []
        return start_tollgate(rule_file(RULES), flags=check)

    return start


def invented_headers(place, number):
    """What a client sends, and a balancer in front of the gateway makes of it."""
    invented = f"192.0.2.{number}"
    forwarded = invented if place == "edge" else f"{invented}, {CLIENT}"
    return {
        "x-forwarded-for": forwarded,
        "x-forwarded-uri": f"/{number}",
        "x-real-ip": invented,
        "x-client-ip": invented,
        "x-envoy-external-address": invented,
        "forwarded": f"for={invented}",
    }


def assert_address_counts(tollgate, gateway, place):
    """Two requests are admitted, whatever they invent, and both are charged to the address of the client."""
    numbers = itertools.count(1)
    codes = [http_call(gateway, "/", headers=invented_headers(place, next(numbers))).code for _ in range(3)]
    assert codes == [200, 200, 429]
    assert tollgate.remaining(("remote_address", CLIENTS[place])) == 0
    assert tollgate.remaining(("remote_address", "192.0.2.1")) == 2


def envoy_example(place):
    """Fields of the connection manager."""
    edge, balancer, networks = (yaml.safe_load(text) for text in examples("Envoy", "yaml"))
    if place == "networks":
        cidrs = networks["original_ip_detection_extensions"][0]["typed_config"]["xff_trusted_cidrs"]["cidrs"]
        assert cidrs == [{"address_prefix": "10.0.0.0", "prefix_len": 8}]
        cidrs[0]["address_prefix"] = "127.0.0.0"
        return networks
    return {"edge": edge, "balancer": balancer}[place]


@pytest.fixture
def start_edge_envoy(start_envoy, echo):
    def start(tollgate, manager_fields):
        limits = [bootstraps.rate_limit({"remote_address": {}})]
        routes = [bootstraps.route("/", *limits)]
        envoy = start_envoy(
            bootstraps.bootstrap([tollgate.grpc], echo.address, routes, manager_fields=manager_fields)
        )
        eventually("Envoy knows Tollgate", lambda: envoy.healthy("tollgate"))
        return envoy.address

    return start


@pytest.mark.parametrize("place", ["edge", "balancer", "networks"])
def test_envoy_counts_address_of_client(place, start_limiter, start_edge_envoy):
    tollgate = start_limiter()
    envoy = start_edge_envoy(tollgate, envoy_example(place))
    assert_address_counts(tollgate, envoy, "edge" if place == "edge" else "balancer")


def test_envoy_without_settings_counts_invented_address(start_limiter, start_edge_envoy):
    tollgate = start_limiter()
    envoy = start_edge_envoy(tollgate, {"use_remote_address": False})
    assert [http_call(envoy, headers=invented_headers("edge", number)).code for number in range(1, 5)] == [200] * 4
    assert tollgate.remaining(("remote_address", "192.0.2.1")) == 1


@PLACES
def test_nginx_counts_address_of_client(place, start_limiter, start_gateway, echo, tmp_path):
    tollgate = start_limiter(template("NGINX", place), "--check-denied-status", "403")
    port = free_port()
    (server,) = gateway_configs.examples("gateways/forward-auth.md", "nginx")
    if place == "balancer":
        (real_ip,) = examples("NGINX", "nginx")
        server = gateway_configs.replaced(real_ip, (BALANCERS, LOCAL_BALANCERS)) + server

    nginx = start_gateway(port, *gateway_configs.nginx(tmp_path, port, tollgate.http, echo.address, server))

    assert_address_counts(tollgate, nginx, place)


@PLACES
def test_haproxy_counts_address_of_client(place, start_limiter, start_gateway, echo, tmp_path):
    tollgate, port = start_limiter(template("NGINX", place)), free_port()
    (config,) = gateway_configs.examples("gateways/forward-auth.md", "haproxy")
    edge, balancer = examples("HAProxy", "haproxy")
    assert edge in config.replace("    ", "")
    if place == "balancer":
        line = gateway_configs.replaced(balancer, (BALANCERS, LOCAL_BALANCERS))
        config = gateway_configs.replaced(config, (edge, line + "    " + edge))

    haproxy = start_gateway(port, *gateway_configs.haproxy(tmp_path, port, tollgate.http, echo.address, config))

    assert_address_counts(tollgate, haproxy, place)


@pytest.mark.extended
@PLACES
def test_caddy_counts_address_of_client(place, start_limiter, start_gateway, echo, tmp_path, monkeypatch):
    # Caddy keeps its configuration there.
    monkeypatch.setenv("HOME", str(tmp_path))
    tollgate, port = start_limiter(template("Caddy", place)), free_port()
    edge, balancer = examples("Caddy", "caddy")
    config = edge if place == "edge" else gateway_configs.replaced(balancer, (BALANCERS, LOCAL_BALANCERS))

    caddy = start_gateway(port, *gateway_configs.caddy(tmp_path, port, tollgate.http, echo.address, config))

    assert_address_counts(tollgate, caddy, place)
    if place == "balancer":
        assert http_call(caddy, "/").code == 400, "a request around the balancer"


@pytest.mark.tools
@PLACES
def test_traefik_counts_address_of_client(place, start_limiter, start_gateway, echo, tmp_path):
    tollgate, port = start_limiter(template("Traefik", place)), free_port()
    edge, points, balancer = examples("Traefik", "yaml")
    point, middleware = {}, edge
    if place == "balancer":
        text = gateway_configs.replaced(points, (BALANCERS, LOCAL_BALANCERS))
        point, middleware = yaml.safe_load(text)["entryPoints"]["web"], balancer
    middleware = yaml.safe_load(gateway_configs.replaced(middleware, ("tollgate:8080", tollgate.http)))

    config = gateway_configs.traefik(tmp_path, port, echo.address, point, middleware)
    traefik = start_gateway(port, *config)
    eventually("Traefik knows its routers", lambda: http_call(traefik, "/unlimited").code == 200)

    assert_address_counts(tollgate, traefik, place)
    if place == "balancer":
        assert http_call(traefik, "/").code == 400, "a request around the balancer"


@pytest.fixture
def start_service(cleanup):
    """Starts a service that asks Tollgate for the address that the function of the page returns."""
    (source,) = examples("A service", "python")
    page = {}
    exec(source, page)

    def start(tollgate, proxies):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                forwarded = self.headers.get_all("x-forwarded-for", [])
                try:
                    address = page["client_address"](self.client_address[0], forwarded, proxies)
                except ValueError:
                    self.send_error(400)
                    return
                descriptor = {"entries": [{"key": "remote_address", "value": address}]}
                body = json.dumps({"domain": "edge", "descriptors": [descriptor]})
                self.send_response(http_call(tollgate.http, "/json", "POST", body=body).code)
                self.end_headers()

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer((LOOPBACK, 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cleanup.callback(server.server_close)
        cleanup.callback(server.shutdown)
        return f"{LOOPBACK}:{server.server_port}"

    return start


@PLACES
def test_service_counts_address_of_client(place, start_limiter, start_service):
    tollgate = start_limiter()
    service = start_service(tollgate, 0 if place == "edge" else 1)

    assert_address_counts(tollgate, service, place)
    if place == "balancer":
        for forwarded in ("", "unknown", "192.0.2.1, "):
            code = http_call(service, headers={"x-forwarded-for": forwarded}).code
            assert code == (200 if forwarded.startswith("192") else 400), forwarded
