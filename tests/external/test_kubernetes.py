"""deploy/kubernetes, rendered: valid for Kubernetes, and consistent with Tollgate."""

import json
import re
import shutil
import subprocess

import pytest
import yaml

import manifests
from manifest_checks import OPERATOR_SECRETS, Overlay, problems
from manifests import FOLDER
from processes import ENVOY, ROOT, eventually, http_call, run

pytestmark = pytest.mark.extended

BASE, PRODUCTION = FOLDER / "base", FOLDER / "overlays" / "production"


COMPONENTS = {path.name for path in (FOLDER / "components").iterdir()}
OVERLAYS = [BASE, *(FOLDER / "overlays").iterdir()]


@pytest.fixture(params=sorted(COMPONENTS | {"as it is"}))
def component(request):
    return request.param


@pytest.fixture(params=sorted(OVERLAYS), ids=lambda path: path.name)
def overlay(request, component, tmp_path):
    """Every combination that deploy/kubernetes can be rendered to."""
    if component in COMPONENTS:
        return manifests.objects(manifests.with_component(component, request.param, tmp_path))
    return manifests.objects(request.param)


def test_overlays_pass_all_validators(overlay, schemas):
    assert manifests.kubernetes_validate_errors(overlay) == []
    assert manifests.kubeconform_errors(overlay, schemas) == []
    assert problems(overlay) == []


def test_production_overlay_patches_take_effect():
    base, production = (Overlay(manifests.objects(folder)) for folder in (BASE, PRODUCTION))

    assert (base.deployment["spec"]["replicas"], production.deployment["spec"].get("replicas")) == (3, None)
    spreads = [one["whenUnsatisfiable"] for one in production.pod["topologySpreadConstraints"]]
    assert spreads == ["DoNotSchedule", "ScheduleAnyway"], "hosts before zones, and no third constraint"
    assert production.container["resources"]["limits"]["memory"] == "1Gi"
    added = {f"TOLLGATE_GRPC__TLS_{name}" for name in ("CERT", "KEY", "CLIENT_CA")}
    assert production.variables.keys() - base.variables.keys() == added
    assert base.variables.items() < production.variables.items(), "no variable is removed"
    assert production.volumes.keys() - base.volumes.keys() == {"tls"}


def test_peer_certificates_replace_the_secret(tmp_path):
    folder = manifests.with_component("peer-certificates", BASE, tmp_path)
    certified, base = Overlay(manifests.objects(folder)), Overlay(manifests.objects(BASE))

    assert certified.volumes.keys() == {"rules", "peer-certificates"}
    assert base.variables.keys() - certified.variables.keys() == {"TOLLGATE_CLUSTER__SECRET_FILE"}
    added = {f"TOLLGATE_CLUSTER__{name}" for name in ("CERT", "KEY", "CA")}
    assert certified.variables.keys() - base.variables.keys() == added


def test_redis_component_replaces_the_cluster(tmp_path):
    folder = manifests.with_component("redis", BASE, tmp_path)
    shared, base = Overlay(manifests.objects(folder)), Overlay(manifests.objects(BASE))

    assert shared.volumes.keys() == {"rules", "redis-password"}
    removed = {f"TOLLGATE_CLUSTER__{name}" for name in ("LISTEN", "ADVERTISE", "SEED", "SECRET_FILE")}
    assert base.variables.keys() - shared.variables.keys() == removed | {"POD_IP"}
    added = {f"TOLLGATE_STORE__{name}" for name in ("KIND", "REDIS__URLS", "REDIS__PASSWORD_FILE")}
    assert shared.variables.keys() - base.variables.keys() == added
    assert "cluster" not in shared.ports
    assert "tollgate-peers" not in {service["metadata"]["name"] for service in shared.all("Service")}


def test_image_tag_equals_program_version():
    version = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE).group(1)

    assert Overlay(manifests.objects(BASE)).container["image"] == f"tollgate:{version}"


PAGE = (ROOT / "docs" / "kubernetes.md").read_text()


def example(start):
    """The example of the page that begins with `start`."""
    (found,) = [block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if block.startswith(start)]
    return found


def test_kubernetes_page_documents_every_secret():
    for name in OPERATOR_SECRETS:
        assert f"`{name}`" in PAGE
    path = Overlay(manifests.objects(BASE)).variables["TOLLGATE_CLUSTER__SECRET_FILE"]
    assert f"create secret generic tollgate-cluster --from-literal={path.rsplit('/', 1)[1]}=" in PAGE


def test_overlay_of_kubernetes_page_is_valid(tmp_path, schemas):
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(example("# shop/"))
    (folder / "edge.yaml").write_text((ROOT / "deploy" / "rules" / "example.yaml").read_text())

    objects = manifests.objects(folder)

    assert manifests.kubeconform_errors(objects, schemas) + problems(objects) == []
    assert {one["metadata"]["namespace"] for one in objects} == {"shop"}
    assert Overlay(objects).container["image"].startswith("registry.example.com/tollgate:")
    assert Overlay(objects).one("ConfigMap")["data"].keys() == {"edge.yaml"}, (
        "the name has no hash, and the rules are replaced"
    )
    assert "login" in Overlay(objects).one("ConfigMap")["data"]["edge.yaml"]


def test_envoy_accepts_cluster_of_kubernetes_page(tmp_path):
    bootstrap = tmp_path / "envoy.yaml"
    bootstrap.write_text(json.dumps({"static_resources": {"clusters": yaml.safe_load(example("- name: tollgate"))}}))

    command = [ENVOY, "--mode", "validate", "-c", bootstrap, "--use-dynamic-base-id"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert "eprecated" not in done.stderr


def test_config_map_rules_are_valid(tmp_path):
    (rules,) = [one for one in manifests.objects(BASE) if one["kind"] == "ConfigMap"]
    for name, text in rules["data"].items():
        (tmp_path / name).write_text(text)

    done = run("check", tmp_path)

    assert done.returncode == 0, done


def test_program_starts_with_pod_arguments_and_answers_probes(start_pod):
    overlay = Overlay(manifests.objects(BASE))
    assert overlay.variables["TOLLGATE_CLUSTER__ADVERTISE"] == "$(POD_IP)"

    http = start_pod(overlay, BASE / "rules")

    for probe in ("readinessProbe", "livenessProbe"):
        path = overlay.container[probe]["httpGet"]["path"]
        eventually(f"{path} is answered", lambda path=path: http_call(http, path).code == 200)
