"""Checks beyond schemas: whether the objects of a rendered overlay are consistent with each other and with Tollgate."""

import re

from processes import ROOT

# Secrets that the operator creates, as docs/kubernetes.md describes.
OPERATOR_SECRETS = {"tollgate-cluster", "tollgate-tls", "tollgate-peers-tls", "tollgate-redis"}

# Allowed values of fields that the schemas declare as plain strings.
ENUMS = {
    "imagePullPolicy": {"Always", "Never", "IfNotPresent"},
    "protocol": {"TCP", "UDP", "SCTP"},
    "whenUnsatisfiable": {"DoNotSchedule", "ScheduleAnyway"},
    "nodeTaintsPolicy": {"Honor", "Ignore"},
    "selectPolicy": {"Max", "Min", "Disabled"},
    "policyTypes": {"Ingress", "Egress"},
    "unhealthyPodEvictionPolicy": {"AlwaysAllow", "IfHealthyBudget"},
}
HANDLERS = {"httpGet", "tcpSocket", "exec", "grpc"}
NOBODY_UID = 65534


class Overlay:
    """The objects of a rendered overlay, by purpose."""

    def __init__(self, objects):
        self.objects = objects
        self.deployment = self.one("Deployment")
        self.template = self.deployment["spec"]["template"]
        self.pod = self.template["spec"]
        (self.container,) = self.pod["containers"]
        self.labels = self.template["metadata"]["labels"]
        self.ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        self.variables = {one["name"]: one.get("value") for one in self.container["env"]}
        self.volumes = {one["name"]: one for one in self.pod["volumes"]}
        self.autoscaler = next(iter(self.all("HorizontalPodAutoscaler")), None)

    def all(self, kind):
        return [one for one in self.objects if one["kind"] == kind]

    def one(self, kind):
        (found,) = self.all(kind)
        return found

    def replicas_min(self):
        spec = self.autoscaler["spec"] if self.autoscaler else self.deployment["spec"]
        return spec["minReplicas" if self.autoscaler else "replicas"]

    def selects(self, labels):
        return bool(labels) and labels.items() <= self.labels.items()

    def has_port(self, port):
        return port in self.ports or port in self.ports.values()


def problems(objects):
    """All problems, as sentences."""
    overlay = Overlay(objects)
    return [problem for check in CHECKS for problem in check(overlay)]


def selectors(overlay):
    selecting = [("the Deployment", overlay.deployment["spec"]["selector"]["matchLabels"])]
    selecting += [(f"Service {one['metadata']['name']}", one["spec"]["selector"]) for one in overlay.all("Service")]
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        spec = overlay.one(kind)["spec"]
        selecting.append((kind, spec.get("selector", spec.get("podSelector"))["matchLabels"]))
    for spread in overlay.pod["topologySpreadConstraints"]:
        selecting.append((spread["topologyKey"], spread.get("labelSelector", {}).get("matchLabels")))
    yield from (f"{subject} selects no pod by {labels}" for subject, labels in selecting if not overlay.selects(labels))
    if {"kubernetes.io/hostname", "topology.kubernetes.io/zone"} != {
        subject for subject, _ in selecting if "/" in subject
    }:
        yield "pods are not spread over machines and zones"


def ports(overlay):
    used = [port["targetPort"] for service in overlay.all("Service") for port in service["spec"]["ports"]]
    policy = overlay.one("NetworkPolicy")["spec"]
    used += [port["port"] for rule in policy["ingress"] for port in rule["ports"]]
    used += [port["port"] for rule in policy["egress"] for port in rule["ports"] if "to" in rule]
    annotations = overlay.template["metadata"].get("annotations", {})
    used += [int(port) for name, port in annotations.items() if name == "prometheus.io/port"]
    yield from (f"the pod has no port {port}" for port in used if not overlay.has_port(port))
    for name, port in overlay.ports.items():
        if not (overlay.variables.get(f"TOLLGATE_{name.upper()}__LISTEN") or "").endswith(f":{port}"):
            yield f"nothing listens on the port {name}"


def probes(overlay):
    for name in ("readinessProbe", "livenessProbe"):
        probe = overlay.container.get(name, {})
        handlers = [probe[handler] for handler in HANDLERS & probe.keys()]
        if len(handlers) != 1:
            yield f"{name} asks in {len(handlers)} ways"
        probed = [handler["port"] for handler in handlers if "port" in handler]
        yield from (f"{name} asks at no port of the pod: {port}" for port in probed if not overlay.has_port(port))
    # A live process that is not ready must not be restarted: it has no rules, or it is draining.
    for name, path in (("readinessProbe", "/readyz"), ("livenessProbe", "/livez")):
        if overlay.container.get(name, {}).get("httpGet", {}).get("path") != path:
            yield f"{name} does not ask for {path}"


def network_policy(overlay):
    for rule in overlay.one("NetworkPolicy")["spec"]["ingress"]:
        if not rule.get("from"):
            yield "ingress is open to everything"
        to_counters = any(port["port"] in ("cluster", overlay.ports.get("cluster")) for port in rule["ports"])
        for subject in rule.get("from", []) if to_counters else []:
            if not overlay.selects(subject.get("podSelector", {}).get("matchLabels")) or "namespaceSelector" in subject:
                yield f"not only replicas may reach the counters of replicas: {subject}"


def mounts(overlay):
    mounted = {mount["name"]: mount for mount in overlay.container["volumeMounts"]}
    yield from (f"no volume {name}" for name in mounted.keys() - overlay.volumes.keys())
    yield from (f"nothing mounts {name}" for name in overlay.volumes.keys() - mounted.keys())
    yield from (f"{name} is mounted as a file and never changes" for name, one in mounted.items() if "subPath" in one)
    folders = [mount["mountPath"] for mount in mounted.values()]
    for name, value in overlay.variables.items():
        if (value or "").startswith("/") and not any(f"{value}/".startswith(f"{folder}/") for folder in folders):
            yield f"{name}: {value} is in no volume"


def references(overlay):
    yield from (f"the secret {one['metadata']['name']} would be public" for one in overlay.all("Secret"))
    maps = {one["metadata"]["name"] for one in overlay.all("ConfigMap")}
    for volume in overlay.volumes.values():
        source = volume.get("configMap") or volume["secret"]
        if source.get("optional"):
            yield f"the pod starts without {volume['name']}"
        if source.get("name", source.get("secretName")) not in (maps if "configMap" in volume else OPERATOR_SECRETS):
            yield f"no object provides the content of {volume['name']}"


def draining(overlay):
    delay, timeout = (seconds(overlay.variables[f"TOLLGATE_DRAIN__{name}"]) for name in ("DELAY", "TIMEOUT"))
    if overlay.pod["terminationGracePeriodSeconds"] <= delay + timeout:
        yield "the grace period is shorter than the drain"
    rolling = overlay.deployment["spec"]["strategy"]["rollingUpdate"]
    if (rolling["maxSurge"], rolling["maxUnavailable"]) != (1, 0) or not overlay.deployment["spec"]["minReadySeconds"]:
        yield "a roll does not replace one replica at a time"
    budget = overlay.one("PodDisruptionBudget")["spec"]
    if budget.get("maxUnavailable") != 1 or overlay.replicas_min() < 2:
        yield "the disruption budget does not allow exactly one disruption of several replicas"


def scaling(overlay):
    if not overlay.autoscaler:
        return
    spec, target = overlay.autoscaler["spec"], overlay.autoscaler["spec"]["scaleTargetRef"]
    if not spec["minReplicas"] < spec["maxReplicas"]:
        yield "the autoscaler has no range"
    if (target["kind"], target["name"]) != ("Deployment", overlay.deployment["metadata"]["name"]):
        yield "the autoscaler scales something else"
    if "replicas" in overlay.deployment["spec"]:
        yield "each apply undoes what the autoscaler did"
    for metric in spec["metrics"]:
        if metric["resource"]["name"] not in overlay.container["resources"]["requests"]:
            yield f"a share of {metric['resource']['name']}, which is not requested"
    down = spec["behavior"]["scaleDown"]
    (step,) = down["policies"]
    has_left = overlay.pod["terminationGracePeriodSeconds"] < step["periodSeconds"]
    if down["stabilizationWindowSeconds"] < 300 or step["value"] != 1 or not has_left:
        yield "replicas are removed faster than one after the other"


def peer_discovery(overlay):
    if overlay.variables.get("TOLLGATE_STORE__KIND") != "redis":
        name, port = overlay.variables["TOLLGATE_CLUSTER__SEED"].split(":")
        seeds = next((one["spec"] for one in overlay.all("Service") if one["metadata"]["name"] == name), {})
        if seeds.get("clusterIP") != "None" or not seeds.get("publishNotReadyAddresses"):
            yield "replicas that are not ready yet do not find each other"
        if int(port) not in [one["port"] for one in seeds.get("ports", [])] or int(port) != overlay.ports["cluster"]:
            yield "the seeds are at another port than the replicas"
    known = []
    for one in overlay.container["env"]:
        for used in re.findall(r"\$\((\w+)\)", one.get("value", "")):
            if used not in known:
                yield f"{one['name']} uses {used}, which is not set before it"
        known.append(one["name"])
    if len(known) != len(set(known)):
        yield "a variable is set twice"


def settings(overlay):
    page = (ROOT / "docs" / "settings.md").read_text()
    known = set(re.findall(r"^\| `([a-z_.]+)` ", page, re.MULTILINE))
    variables = {f"TOLLGATE_{name.upper().replace('.', '__')}" for name in known} | {"POD_IP"}
    yield from (f"no setting is called {name}" for name in overlay.variables.keys() - variables)


def security_context(overlay):
    pod, container = overlay.pod.get("securityContext", {}), overlay.container.get("securityContext", {})
    resources = overlay.container["resources"]
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    wanted = {
        "service links are off": overlay.pod.get("enableServiceLinks") is False,
        "there is no token for the Kubernetes API": overlay.pod.get("automountServiceAccountToken") is False,
        "the process runs as nobody": (pod.get("runAsNonRoot"), pod.get("runAsUser")) == (True, NOBODY_UID),
        "its group can read Secrets": pod.get("fsGroup") == pod.get("runAsGroup") == NOBODY_UID,
        "system calls are filtered": pod.get("seccompProfile") == {"type": "RuntimeDefault"},
        "its root is read-only": container.get("readOnlyRootFilesystem") is True,
        "it has no capabilities": container.get("capabilities") == {"drop": ["ALL"]},
        "it gains no privileges": container.get("allowPrivilegeEscalation") is False,
        "its memory is bounded": "memory" in limits,
        "its ephemeral storage is bounded": "ephemeral-storage" in limits,
        "it requests ephemeral storage": "ephemeral-storage" in requests,
    }
    yield from (f"not true: {fact}" for fact, holds in wanted.items() if not holds)


def enums(overlay):
    for value, allowed in _enum_values(overlay.objects):
        if value not in allowed:
            yield f"{value} is not one of {sorted(allowed)}"


def _enum_values(node):
    """All values of fields with a fixed set of allowed values."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if key in ENUMS:
            yield from ((one, ENUMS[key]) for one in (value if isinstance(value, list) else [value]))
        elif isinstance(value, (dict, list)):
            yield from _enum_values(value)


def seconds(text):
    """A duration in the format of settings: `10s`, `5m`."""
    number, unit = re.fullmatch(r"(\d+)(s|m)", text).groups()
    return int(number) * {"s": 1, "m": 60}[unit]


CHECKS = [selectors, ports, probes, network_policy, mounts, references]
CHECKS += [draining, scaling, peer_discovery, settings, security_context, enums]
