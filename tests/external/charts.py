"""Renders deploy/helm/tollgate, and validates objects of the Prometheus operator beside those of Kubernetes."""

import contextlib
import copy
import functools
import http.server
import json
import pathlib
import subprocess
import threading

import yaml

import manifests
from processes import LOOPBACK, ROOT

CHART = ROOT / "deploy" / "helm" / "tollgate"
MONITORING = ROOT / "deploy" / "monitoring"
NAMESPACE = "shop"
OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
OPERATOR_KINDS = {"ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules"}
VERSION = f"{manifests.VERSION}.0"
# Values that add all that the Prometheus operator reads.
MONITORED = {name: {"enabled": True} for name in ("serviceMonitor", "prometheusRule", "dashboard")}


def helm(*arguments):
    """The process of helm when it has exited. Its output is in `stdout`; warnings are in `stderr`."""
    command = [manifests.tool("helm"), *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=manifests.TIMEOUT, check=False)


def given(values, folder):
    """The arguments for these values: a dictionary, or the path of a file."""
    if isinstance(values, dict):
        path = folder / "values.yaml"
        path.write_text(json.dumps(values))
        values = path
    return ["--values", values]


def render(values, folder, *arguments, release="tollgate", chart=CHART):
    """`helm template` with these values. The chart may refuse them."""
    place = ["--namespace", NAMESPACE, "--kube-version", VERSION]
    return helm("template", release, chart, *place, *given(values, folder), *arguments)


def objects(values, folder, **options):
    """The rendered objects."""
    done = render(values, folder, **options)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def of_kind(found, kind):
    return [one for one in found if one["kind"] == kind]


def errors(found, schemas):
    """What third-party programs report about these objects."""
    native = [one for one in found if one["kind"] not in OPERATOR_KINDS]
    return manifests.kubernetes_validate_errors(native) + manifests.kubeconform_errors(found, schemas)


def write_operator_schemas(folder):
    """Adds the kinds of the Prometheus operator to a directory that `manifests.write_schemas` has filled."""
    module = pathlib.Path(json.loads(manifests.output("go", "mod", "download", "-json", OPERATOR))["Dir"])
    for plural in OPERATOR_KINDS.values():
        path = module / "example" / "prometheus-operator-crd" / f"monitoring.coreos.com_{plural}.yaml"
        write_definitions(yaml.safe_load_all(path.read_text()), folder)
    return folder


def write_definitions(definitions, folder):
    """Writes strict JSON schemas of custom resource definitions, one file per kind, as kubeconform expects them."""
    for definition in definitions:
        if not definition or definition["kind"] != "CustomResourceDefinition":
            continue
        spec = definition["spec"]
        kind, group = spec["names"]["kind"].lower(), spec["group"].split(".")[0]
        for version in spec["versions"]:
            schema = _strict(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"$ref": f"types.json#/definitions/{META}"}
            # Every resource has these two, whether the definition repeats them or not.
            schema["properties"] |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
            (folder / f"{kind}-{group}-{version['name']}.json").write_text(json.dumps(schema))


META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


def _strict(schema):
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: _strict(value) for key, value in schema.items()}
    free = schema.get("x-kubernetes-preserve-unknown-fields")
    if schema.get("type") == "object" and "properties" in schema and not free:
        schema.setdefault("additionalProperties", False)
    return schema


# Helm adds these; kustomize does not.
HELM_LABELS = {
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
}
# Lists of a pod whose order has no meaning.
UNORDERED = {"env", "volumes", "volumeMounts"}


def normalised(found):
    """The objects by kind and name, without what differs by tool: Helm's labels, namespaces and the order of lists."""
    return {(one["kind"], one["metadata"]["name"]): _normalised(one) for one in copy.deepcopy(found)}


def _normalised(node):
    if isinstance(node, list):
        return [_normalised(one) for one in node]
    if not isinstance(node, dict):
        return node
    node = {key: _normalised(value) for key, value in node.items() if key not in HELM_LABELS}
    if node.get("namespace") == NAMESPACE:
        del node["namespace"]
    if node.get("annotations") == {}:
        del node["annotations"]
    for key in UNORDERED & node.keys():
        node[key] = sorted(node[key], key=lambda one: one["name"])
    return node


@functools.cache
def schema():
    return json.loads((CHART / "values.schema.json").read_text())


# The kinds of the chart, by the path of their group.
API = {
    "api/v1": ["Secret", "Service", "ConfigMap"],
    "apis/apps/v1": ["Deployment"],
    "apis/networking.k8s.io/v1": ["NetworkPolicy"],
    "apis/policy/v1": ["PodDisruptionBudget"],
}


def _version(path):
    return {"groupVersion": path.split("/", 1)[1], "version": "v1"}


@contextlib.contextmanager
def api_server(secrets, folder):
    """A Kubernetes API with these Secrets, as far as Helm reads it. Yields the arguments for Helm."""
    groups = [{"name": path.split("/")[1], "versions": [_version(path)]} for path in API if path != "api/v1"]
    pages = {
        "/version": {"major": "1", "minor": manifests.VERSION.split(".")[1], "gitVersion": f"v{VERSION}"},
        "/api": {"kind": "APIVersions", "apiVersion": "v1", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
    }
    for path, kinds in API.items():
        resources = [{"name": f"{kind.lower()}s", "namespaced": True, "kind": kind, "verbs": ["get"]} for kind in kinds]
        version = _version(path)["groupVersion"]
        pages[f"/{path}"] = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
    # No release of Helm exists.
    folder_of_secrets = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    pages[folder_of_secrets] = {"kind": "SecretList", "apiVersion": "v1", "items": []}
    for name, data in secrets.items():
        metadata = {"name": name, "namespace": NAMESPACE}
        secret = {"kind": "Secret", "apiVersion": "v1", "metadata": metadata, "data": data}
        pages[f"{folder_of_secrets}/{name}"] = secret
    missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            page = pages.get(self.path.split("?")[0])
            body = json.dumps(page or missing).encode()
            self.send_response(200 if page else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer((LOOPBACK, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        url = f"http://{LOOPBACK}:{server.server_port}"
        config = folder / "kubeconfig"
        context = {"name": "test", "context": {"cluster": "test", "user": "test"}}
        clusters, users = [{"name": "test", "cluster": {"server": url}}], [{"name": "test", "user": {}}]
        kubeconfig = {"apiVersion": "v1", "kind": "Config", "clusters": clusters, "users": users}
        config.write_text(json.dumps(kubeconfig | {"contexts": [context], "current-context": "test"}))
        yield ["--kubeconfig", config]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
