"""deploy/kubernetes, as it is rendered: valid to Kubernetes, and right for Tollgate."""

import json
import re
import shutil
import subprocess

import pytest
import yaml

import manifests
from manifest_checks import OF_THE_OPERATOR, Overlay, problems
from manifests import FOLDER
from processes import ENVOY, LISTENERS, LOOPBACK, ROOT, TOLLGATE, Process, eventually, http_call, run

BASE, PRODUCTION = FOLDER / "base", FOLDER / "overlays" / "production"


COMPONENTS = {path.name for path in (FOLDER / "components").iterdir()}
OVERLAYS = [BASE, *(FOLDER / "overlays").iterdir()]


@pytest.fixture(params=sorted(COMPONENTS | {"as it is"}))
def component(request):
    return request.param


@pytest.fixture(params=sorted(OVERLAYS), ids=lambda path: path.name)
def overlay(request, component, tmp_path):
    """Everything that deploy/kubernetes can be rendered to."""
    if component in COMPONENTS:
        return manifests.objects(manifests.with_component(component, request.param, tmp_path))
    return manifests.objects(request.param)


def test_nobody_has_anything_to_say_against_an_overlay(overlay, schemas):
    assert manifests.complaints_of_kubernetes_validate(overlay) == []
    assert manifests.complaints_of_kubeconform(overlay, schemas) == []
    assert problems(overlay) == []


def test_each_patch_of_the_production_overlay_has_taken_effect():
    base, production = (Overlay(manifests.objects(folder)) for folder in (BASE, PRODUCTION))

    assert (base.deployment["spec"]["replicas"], production.deployment["spec"].get("replicas")) == (3, None)
    spreads = [one["whenUnsatisfiable"] for one in production.pod["topologySpreadConstraints"]]
    assert spreads == ["DoNotSchedule", "ScheduleAnyway"], "machines before zones, and no third one"
    assert production.container["resources"]["limits"]["memory"] == "1Gi"
    added = {f"TOLLGATE_GRPC__TLS_{name}" for name in ("CERT", "KEY", "CLIENT_CA")}
    assert production.variables.keys() - base.variables.keys() == added
    assert base.variables.items() < production.variables.items(), "and nothing is lost"
    assert production.volumes.keys() - base.volumes.keys() == {"tls"}


def test_certificates_between_replicas_take_the_place_of_the_secret(tmp_path):
    folder = manifests.with_component("peer-certificates", BASE, tmp_path)
    certified, base = Overlay(manifests.objects(folder)), Overlay(manifests.objects(BASE))

    assert certified.volumes.keys() == {"rules", "peer-certificates"}
    assert base.variables.keys() - certified.variables.keys() == {"TOLLGATE_CLUSTER__SECRET_FILE"}
    added = {f"TOLLGATE_CLUSTER__{name}" for name in ("CERT", "KEY", "CA")}
    assert certified.variables.keys() - base.variables.keys() == added


def test_the_image_has_the_version_of_the_program():
    version = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE).group(1)

    assert Overlay(manifests.objects(BASE)).container["image"] == f"tollgate:{version}"


PAGE = (ROOT / "docs" / "kubernetes.md").read_text()


def example(start):
    """The example on the page that begins so."""
    (found,) = [block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if block.startswith(start)]
    return found


def test_the_page_tells_how_to_make_every_secret():
    for name in OF_THE_OPERATOR:
        assert f"`{name}`" in PAGE
    path = Overlay(manifests.objects(BASE)).variables["TOLLGATE_CLUSTER__SECRET_FILE"]
    assert f"create secret generic tollgate-cluster --from-literal={path.rsplit('/', 1)[1]}=" in PAGE


def test_the_folder_of_ones_own_that_the_page_describes_is_sound(tmp_path, schemas):
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(example("# shop/"))
    (folder / "edge.yaml").write_text((ROOT / "deploy" / "rules" / "example.yaml").read_text())

    objects = manifests.objects(folder)

    assert manifests.complaints_of_kubeconform(objects, schemas) + problems(objects) == []
    assert {one["metadata"]["namespace"] for one in objects} == {"shop"}
    assert Overlay(objects).container["image"].startswith("registry.example.com/tollgate:")
    assert Overlay(objects).one("ConfigMap")["data"].keys() == {"edge.yaml"}, "the name has no hash, the rules are ours"
    assert "login" in Overlay(objects).one("ConfigMap")["data"]["edge.yaml"]


def test_envoy_accepts_the_cluster_on_the_page(tmp_path):
    bootstrap = tmp_path / "envoy.yaml"
    bootstrap.write_text(json.dumps({"static_resources": {"clusters": yaml.safe_load(example("- name: tollgate"))}}))

    command = [ENVOY, "--mode", "validate", "-c", bootstrap, "--use-dynamic-base-id"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert "eprecated" not in done.stderr


def test_the_rules_of_the_config_map_are_good(tmp_path):
    (rules,) = [one for one in manifests.objects(BASE) if one["kind"] == "ConfigMap"]
    for name, text in rules["data"].items():
        (tmp_path / name).write_text(text)

    done = run("check", tmp_path)

    assert done.returncode == 0, done


def test_the_program_starts_with_the_arguments_of_the_pod_and_answers_its_probes(ends, tmp_path):
    overlay = Overlay(manifests.objects(BASE))
    variables = overlay.variables | {"TOLLGATE_RULES__PATH": BASE / "rules"}
    # Ports are taken here as they are free; there is nobody else, and no name leads to anybody.
    variables |= {f"TOLLGATE_{name.upper()}__LISTEN": f"{LOOPBACK}:0" for name in (*LISTENERS, "cluster")}
    assert variables.pop("TOLLGATE_CLUSTER__ADVERTISE") == "$(POD_IP)"
    secret = tmp_path / "secret"
    secret.write_text("a secret for this test alone\n")
    variables |= {
        "TOLLGATE_CLUSTER__ADVERTISE": LOOPBACK,
        "TOLLGATE_CLUSTER__SEED": f"{LOOPBACK}:1",
        "TOLLGATE_CLUSTER__SECRET_FILE": secret,
    }
    given = [f"{name}={value}" for name, value in variables.items() if name != "POD_IP"]

    process = Process(["env", *given, TOLLGATE, *overlay.container["args"]], tmp_path / "tollgate.log")
    ends.callback(process.kill)

    def address():
        process.must_run()
        events = [yaml.safe_load(line) for line in process.output().splitlines()]
        return next((one["address"] for one in events if one.get("listener") == "http"), None)

    http = eventually("it listens", address)
    for probe in ("readinessProbe", "livenessProbe"):
        path = overlay.container[probe]["httpGet"]["path"]
        eventually(f"{path} is answered", lambda path=path: http_call(http, path).code == 200)
