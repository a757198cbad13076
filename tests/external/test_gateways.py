"""The pages of docs/gateways: their resources fit the schemas, and what they make of Envoy limits requests."""

import json
import pathlib
import re

import pytest
import yaml

import charts
import manifests
from bootstraps import cluster, socket_address, typed
from processes import LOOPBACK, ROOT, eventually, http_call, run

PAGES = ROOT / "docs" / "gateways"
MANAGER = "envoy.filters.network.http_connection_manager"
ROUTER = typed("envoy.filters.http.router", "extensions.filters.http.router.v3.Router", {})
# Windows of a year, so that none ends during a test.
RULES = """
    domain: edge
    on_denied: charge_none
    descriptors:
      - key: remote_address
        rate_limit: {unit: year, requests_per_unit: 3, algorithm: fixed_window}
      - key: %s
        rate_limit: {unit: year, requests_per_unit: 2, algorithm: fixed_window}
"""


def examples(page):
    """The resources of a page, by kind."""
    blocks = re.findall(r"```yaml\n(.*?)```", (PAGES / f"{page}.md").read_text(), re.DOTALL)
    found = [yaml.safe_load(block) for block in blocks]
    return {one["kind"]: one for one in found}


class Edge:
    """The configuration of an Envoy in front of `upstream`, as a gateway would make it without rate limits."""

    def __init__(self, upstream):
        self.virtual_host = {
            "name": "all",
            "domains": ["*"],
            "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "upstream"}}],
        }
        self.routes = {"name": "default/eg/http", "virtual_hosts": [self.virtual_host]}
        self.manager = {
            "stat_prefix": "edge",
            "use_remote_address": True,
            "http_filters": [ROUTER],
            "route_config": self.routes,
        }
        kind = "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
        self.listener = {
            "name": "edge",
            "address": socket_address(f"{LOOPBACK}:0"),
            "default_filter_chain": {"filters": [typed(MANAGER, kind, self.manager)]},
        }
        # `typed` copies the configuration; the patches change what Envoy gets.
        self.manager = self.listener["default_filter_chain"]["filters"][0]["typed_config"]
        self.upstream = cluster("upstream", [upstream])
        self.clusters = []

    def limit(self, filter_config, rate_limits, tollgate_cluster):
        """Adds a rate limit filter in front of the router, descriptors and the cluster of Tollgate."""
        kind = "extensions.filters.http.ratelimit.v3.RateLimit"
        self.manager["http_filters"].insert(0, typed("envoy.filters.http.ratelimit", kind, filter_config))
        self.virtual_host["rate_limits"] = rate_limits
        self.clusters.append(tollgate_cluster)

    def bootstrap(self, tollgate=None):
        """The text for Envoy; `tollgate` is the address of a process instead of the name in Kubernetes."""
        (found,) = self.clusters
        if tollgate:
            (endpoint,) = found["load_assignment"]["endpoints"][0]["lb_endpoints"]
            endpoint["endpoint"]["address"] = socket_address(tollgate)
        (limit,) = [one for one in self.manager["http_filters"] if "ratelimit" in one["name"]]
        assert limit["typed_config"]["timeout"] == "0.25s"
        # The tests are about decisions and run on busy machines.
        limit["typed_config"]["timeout"] = "5s"
        resources = {"listeners": [self.listener], "clusters": [*self.clusters, self.upstream]}
        return json.dumps({"admin": {"address": socket_address(f"{LOOPBACK}:0")}, "static_resources": resources})


def istio(edge):
    """Applies an EnvoyFilter as Istio does."""
    for one in examples("istio")["EnvoyFilter"]["spec"]["configPatches"]:
        value, operation = one["patch"]["value"], (one["applyTo"], one["patch"]["operation"])
        if operation == ("CLUSTER", "ADD"):
            edge.clusters.append(value)
        elif operation == ("HTTP_FILTER", "INSERT_BEFORE"):
            wanted = one["match"]["listener"]["filterChain"]["filter"]
            assert wanted["name"] == MANAGER
            filters = edge.manager["http_filters"]
            filters.insert([entry["name"] for entry in filters].index(wanted["subFilter"]["name"]), value)
        elif operation == ("VIRTUAL_HOST", "MERGE"):
            edge.virtual_host |= value
        else:
            raise AssertionError(operation)
    return "user"


def envoy_gateway(edge):
    """Applies an EnvoyPatchPolicy as Envoy Gateway does."""
    for one in examples("envoy-gateway")["EnvoyPatchPolicy"]["spec"]["jsonPatches"]:
        kind, operation = one["type"].rsplit(".", 1)[1], one["operation"]
        assert operation["op"] == "add"
        if kind == "Cluster":
            assert (operation["path"], one["name"]) == ("", operation["value"]["name"])
            edge.clusters.append(operation["value"])
        else:
            assert one["name"] == "default/eg/http"
            add({"Listener": edge.listener, "RouteConfiguration": edge.routes}[kind], operation)
    return "user"


def add(target, operation):
    """The operation `add` of a JSON patch."""
    *path, last = operation["path"].strip("/").split("/")
    for name in path:
        target = target[int(name)] if isinstance(target, list) else target[name]
    if isinstance(target, list):
        target.insert(int(last), operation["value"])
    else:
        target[last] = operation["value"]


def filter_of(domain, timeout, fail_open):
    service = {"transport_api_version": "V3", "grpc_service": {"envoy_grpc": {"cluster_name": "tollgate"}}}
    assert timeout == "250ms"
    return {
        "domain": domain,
        "timeout": "0.25s",
        "failure_mode_deny": not fail_open,
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
        "rate_limit_service": service,
    }


def contour(edge):
    """What the resources of Contour mean for Envoy."""
    found = examples("contour")
    service = found["ExtensionService"]["spec"]
    limits = found["ContourConfiguration"]["spec"]["rateLimitService"]
    assert limits["extensionService"] == {
        key: found["ExtensionService"]["metadata"][key] for key in ("name", "namespace")
    }
    assert limits["enableXRateLimitHeaders"]
    assert service["protocol"] == "h2c"
    breakers = {"maxConnections": "max_connections", "maxPendingRequests": "max_pending_requests"}
    breakers["maxRequests"] = "max_requests"
    thresholds = {breakers[key]: value for key, value in service["circuitBreakerPolicy"].items()}
    tollgate = cluster("tollgate", [f"{LOOPBACK}:1"], {"http2_protocol_options": {}})
    tollgate["circuit_breakers"] = {"thresholds": [thresholds]}
    rate_limits = []
    for descriptor in found["HTTPProxy"]["spec"]["virtualhost"]["rateLimitPolicy"]["global"]["descriptors"]:
        actions = []
        for entry in descriptor["entries"]:
            ((kind, value),) = entry.items()
            if kind == "remoteAddress":
                actions.append({"remote_address": {}})
            else:
                header = {"header_name": value["headerName"], "descriptor_key": value["descriptorKey"]}
                actions.append({"request_headers": header})
        rate_limits.append({"actions": actions})
    timeout = service["timeoutPolicy"]["response"]
    edge.limit(filter_of(limits["domain"], timeout, limits["failOpen"]), rate_limits, tollgate)
    return "user"


def kgateway(edge):
    """What the resources of kgateway mean for Envoy: it uses the name of a header as the key."""
    found = examples("kgateway")
    provider = found["GatewayExtension"]["spec"]["rateLimit"]
    policy = found["TrafficPolicy"]["spec"]["rateLimit"]["global"]
    assert policy["extensionRef"]["name"] == found["GatewayExtension"]["metadata"]["name"]
    rate_limits = []
    for descriptor in policy["descriptors"]:
        actions = []
        for entry in descriptor["entries"]:
            if entry["type"] == "RemoteAddress":
                actions.append({"remote_address": {}})
            else:
                actions.append({"request_headers": {"header_name": entry["header"], "descriptor_key": entry["header"]}})
        rate_limits.append({"actions": actions})
    tollgate = cluster("tollgate", [f"{LOOPBACK}:1"], {"http2_protocol_options": {}})
    edge.limit(filter_of(provider["domain"], provider["timeout"], provider["failOpen"]), rate_limits, tollgate)
    return "x-user"


# Each gateway, and the answer without Tollgate that its page promises.
GATEWAYS = {
    "istio": (istio, 200),
    "envoy-gateway": (envoy_gateway, 500),
    "contour": (contour, 200),
    "kgateway": (kgateway, 500),
}


@pytest.mark.parametrize("name", GATEWAYS)
def test_recipe_limits_requests_of_a_real_envoy(name, rule_file, start_tollgate, start_envoy, echo):
    apply, without_tollgate = GATEWAYS[name]
    edge = Edge(echo.address)
    key = apply(edge)
    tollgate = start_tollgate(rule_file(RULES % key))
    envoy = start_envoy(edge.bootstrap(tollgate.grpc))
    eventually("Envoy knows Tollgate", lambda: envoy.healthy("tollgate"))

    assert envoy.codes(3, x_user="ann") == [200, 200, 429], "each user has two requests"
    assert envoy.codes(2) == [200, 429], "the address has three; a refused request is not charged"
    assert "x-ratelimit-limit" in envoy.get().headers
    assert "eprecated" not in envoy.output()

    tollgate.stop()
    assert envoy.codes(2) == [without_tollgate] * 2


@pytest.mark.parametrize("name", ["istio", "envoy-gateway"])
def test_circuit_breakers_of_recipe_apply(name, start_envoy, closed_port):
    edge = Edge(closed_port)
    GATEWAYS[name][0](edge)

    envoy = start_envoy(edge.bootstrap(closed_port))

    clusters = http_call(envoy.admin, "/clusters").body
    for bound, what in ((4096, "requests"), (4096, "pending_requests"), (1024, "connections")):
        assert f"tollgate::default_priority::max_{what}::{bound}\n" in clusters


def test_hash_policy_sends_equal_values_to_one_replica(rule_file, start_tollgate, start_envoy, echo):
    page = (PAGES / "README.md").read_text()
    (block,) = [one for one in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "hash_policy" in one]
    metadata = yaml.safe_load(re.search(r"`initial_metadata: (\[.*?\])`", page).group(1))
    rules = rule_file(RULES % "user")
    # Two single replicas, which share nothing: calls in turn would pass twice as often.
    replicas = [start_tollgate(rules) for _ in range(2)]
    tollgate = cluster("tollgate", [one.grpc for one in replicas]) | yaml.safe_load(block)
    edge = Edge(echo.address)
    header = {"header_name": "x-user", "descriptor_key": "user"}
    limit = filter_of("edge", "250ms", fail_open=False)
    limit["rate_limit_service"]["grpc_service"]["initial_metadata"] = metadata
    edge.limit(limit, [{"actions": [{"request_headers": header}]}], tollgate)
    envoy = start_envoy(edge.bootstrap())

    for user in ("ann", "bob", "cem", "dan", "eve", "fay"):
        assert envoy.codes(4, x_user=user) == [200, 200, 429, 429], user


# Where the modules of the gateways have their resource definitions.
DEFINITIONS = {
    "istio": ("istio.io/api@v1.31.1", "kubernetes/customresourcedefinitions.gen.yaml"),
    "contour": ("github.com/projectcontour/contour@v1.33.8", "examples/contour/01-crds.yaml"),
    "envoy-gateway": (
        "github.com/envoyproxy/gateway@v1.9.1",
        "charts/gateway-crds-helm/templates/generated/gateway.envoyproxy.io_envoypatchpolicies.yaml",
    ),
}
# The configuration file of Envoy Gateway is no resource.
FILES = {"EnvoyGateway"}


@pytest.mark.extended
@pytest.mark.parametrize("page", DEFINITIONS)
def test_resources_of_recipe_fit_their_schemas(page, schemas):
    module, path = DEFINITIONS[page]
    folder = pathlib.Path(json.loads(manifests.output("go", "mod", "download", "-json", module))["Dir"])
    # The chart of Envoy Gateway wraps its definitions in a condition.
    text = re.sub(r"^\{\{.*\}\}$", "", (folder / path).read_text(), flags=re.MULTILINE)
    charts.write_definitions(yaml.safe_load_all(text), schemas)

    found = [one for kind, one in examples(page).items() if kind not in FILES]

    assert manifests.kubeconform_errors(found, schemas) == []


def test_pages_of_gateways_are_listed_with_what_was_tried():
    index = (PAGES / "README.md").read_text()
    for path in PAGES.glob("*.md"):
        assert path.name == "README.md" or f"]({path.name})" in index
    for name in GATEWAYS:
        row = next(line for line in index.splitlines() if f"]({name}.md)" in line)
        assert "real Envoy" in row or "Envoy configuration" in row


def test_rules_of_gateway_pages_are_valid(rule_file):
    (block,) = [
        one
        for one in re.findall(r"```yaml\n(.*?)```", (PAGES / "README.md").read_text(), re.DOTALL)
        if "domain: edge" in one
    ]
    done = run("check", rule_file(block))

    assert done.returncode == 0, done
