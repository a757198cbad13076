"""The checks of deploy/kubernetes report every planted fault."""

import pytest

import manifests
from manifest_checks import Overlay, problems
from manifests import FOLDER

pytestmark = pytest.mark.extended

PRODUCTION = FOLDER / "overlays" / "production"


class FaultyOverlay(Overlay):
    """The production overlay for planting a fault, with short names for its parts."""

    def __init__(self):
        super().__init__(manifests.objects(PRODUCTION))
        self.spec = self.deployment["spec"]
        self.scaling = self.autoscaler["spec"]
        self.policy = self.one("NetworkPolicy")["spec"]
        self.budget = self.one("PodDisruptionBudget")

    def service(self, name):
        return next(one["spec"] for one in self.all("Service") if one["metadata"]["name"] == name)

    def variable(self, name):
        return next(one for one in self.container["env"] if one["name"] == name)

    def volume(self, name):
        return self.volumes[name]

    def mount(self, name):
        return next(one for one in self.container["volumeMounts"] if one["name"] == name)

    def errors(self, schemas):
        """The errors of all validators; only changed objects are validated again."""
        unchanged = manifests.objects(PRODUCTION)
        changed = [one for one in self.objects if one not in unchanged]
        found = manifests.kubernetes_validate_errors(changed)
        return found + manifests.kubeconform_errors(changed, schemas) + problems(self.objects)


GATE = {"apiVersion": "v1", "kind": "Gate", "metadata": {"name": "gate"}}
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tollgate-cluster"}, "stringData": {"secret": "1"}}

# The fault, how it is planted, and the expected message.
FAULTS = {
    "an unknown field": (lambda o: o.spec.update(replica=3), "'replica' not allowed"),
    "a nested typing error": (
        lambda o: o.container["readinessProbe"]["httpGet"].update(pth="/readyz"),
        "'pth' not allowed",
    ),
    "a wrong type": (lambda o: o.spec.update(minReadySeconds="ten"), "got string, want integer"),
    "a bad quantity": (lambda o: o.container["resources"]["limits"].update(memory="1Gib"), "'1Gib' does not match"),
    "a removed API": (lambda o: o.budget.update(apiVersion="policy/v1beta1"), "could not find schema"),
    "an invalid enum value": (lambda o: o.container.update(imagePullPolicy="Sometimes"), "Sometimes is not one of"),
    "a selector that matches nothing": (
        lambda o: o.service("tollgate")["selector"].update(app="gate"),
        "Service tollgate selects no pod",
    ),
    "two ways to probe": (
        lambda o: o.container["livenessProbe"].update(tcpSocket={"port": "http"}),
        "livenessProbe asks in 2 ways",
    ),
    "a mount without a volume": (lambda o: o.pod["volumes"].remove(o.volume("tls")), "no volume tls"),
    "a maximum below the minimum": (lambda o: o.scaling.update(maxReplicas=2), "the autoscaler has no range"),
    "an unknown kind": (lambda o: o.objects.append(GATE), "could not find schema for Gate"),
    "a probe of no port": (
        lambda o: o.container["readinessProbe"]["httpGet"].update(port="health"),
        "at no port of the pod: health",
    ),
    "a liveness probe that needs rules": (
        lambda o: o.container["livenessProbe"]["httpGet"].update(path="/readyz"),
        "livenessProbe does not ask for /livez",
    ),
    "counters open to the namespace": (
        lambda o: o.policy["ingress"][1]["ports"].append({"port": 8082}),
        "not only replicas may reach the counters",
    ),
    "unrestricted ingress": (lambda o: o.policy["ingress"][2].pop("from"), "ingress is open to everything"),
    "a service of no port": (
        lambda o: o.service("tollgate")["ports"][0].update(targetPort=8091),
        "the pod has no port 8091",
    ),
    "a port that nothing listens on": (
        lambda o: o.variable("TOLLGATE_HTTP__LISTEN").update(value="[::]:8000"),
        "nothing listens on the port http",
    ),
    "an unknown setting": (
        lambda o: o.container["env"].append({"name": "TOLLGATE_DRAIN__DELLAY", "value": "1s"}),
        "no setting is called TOLLGATE_DRAIN__DELLAY",
    ),
    "a name used before it is set": (
        lambda o: o.container["env"].append(o.container["env"].pop(o.container["env"].index(o.variable("POD_IP")))),
        "which is not set before it",
    ),
    "a variable that is set twice": (
        lambda o: o.container["env"].append(o.variable("TOLLGATE_LOG__FORMAT")),
        "a variable is set twice",
    ),
    "a path in no volume": (
        lambda o: o.variable("TOLLGATE_RULES__PATH").update(value="/etc/rules"),
        "/etc/rules is in no volume",
    ),
    "rules mounted as a file": (
        lambda o: o.mount("rules").update(subPath="edge.yaml"),
        "rules is mounted as a file and never changes",
    ),
    "rules that are not there": (
        lambda o: o.objects.remove(o.one("ConfigMap")),
        "no object provides the content of rules",
    ),
    "a public secret": (lambda o: o.objects.append(SECRET), "would be public"),
    "an undefined secret": (
        lambda o: o.volume("tls")["secret"].update(secretName="tls"),
        "no object provides the content of tls",
    ),
    "a pod that starts without its secret": (
        lambda o: o.volume("cluster-secret")["secret"].update(optional=True),
        "the pod starts without cluster-secret",
    ),
    "a grace period shorter than the drain": (
        lambda o: o.pod.update(terminationGracePeriodSeconds=30),
        "the grace period is shorter",
    ),
    "a budget without disruptions": (lambda o: o.budget["spec"].update(maxUnavailable=0), "the disruption budget"),
    "an autoscaler that leaves one": (lambda o: o.scaling.update(minReplicas=1), "the disruption budget"),
    "a number of replicas beside the autoscaler": (lambda o: o.spec.update(replicas=3), "each apply undoes"),
    "shrinking at once": (
        lambda o: o.scaling["behavior"]["scaleDown"].update(stabilizationWindowSeconds=0),
        "replicas are removed faster",
    ),
    "a share of nothing": (lambda o: o.container["resources"]["requests"].pop("cpu"), "a share of cpu"),
    "a roll that takes one away first": (
        lambda o: o.spec["strategy"]["rollingUpdate"].update(maxUnavailable=1),
        "a roll does not replace one replica at a time",
    ),
    "peers that are hidden until they are ready": (
        lambda o: o.service("tollgate-peers").update(publishNotReadyAddresses=False),
        "do not find each other",
    ),
    "a seed that is no service": (
        lambda o: o.variable("TOLLGATE_CLUSTER__SEED").update(value="tollgate-peer:8082"),
        "do not find each other",
    ),
    "a seed at another port": (
        lambda o: o.variable("TOLLGATE_CLUSTER__SEED").update(value="tollgate-peers:8081"),
        "the seeds are at another port",
    ),
    "variables of every service": (lambda o: o.pod.pop("enableServiceLinks"), "service links are off"),
    "a process that is root": (lambda o: o.pod["securityContext"].update(runAsUser=0), "the process runs as nobody"),
    "a disk without a bound": (
        lambda o: o.container["resources"]["limits"].pop("ephemeral-storage"),
        "its ephemeral storage is bounded",
    ),
    "a disk that is not requested": (
        lambda o: o.container["resources"]["requests"].pop("ephemeral-storage"),
        "it requests ephemeral storage",
    ),
    "a root that can be written": (
        lambda o: o.container["securityContext"].update(readOnlyRootFilesystem=False),
        "its root is read-only",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_manifest_fault_is_reported(fault, schemas):
    plant, expected = FAULTS[fault]
    overlay = FaultyOverlay()
    assert not overlay.errors(schemas), "valid before the fault is planted"

    plant(overlay)

    found = overlay.errors(schemas)
    assert any(expected in one for one in found), found
