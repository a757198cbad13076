"""Renders deploy/kubernetes and validates it with third-party programs."""

import copy
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess

import kubernetes_validate
import pytest
import yaml

from processes import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
VERSION = "1.36"
SOURCES = "k8s.io/kubernetes@v1.36.3"
QUANTITY = r"^[+-]?(\d+\.?\d*|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?$"
TIMEOUT = 180.0


def tool(name):
    """The path of a program that tests/run installs; skips the test without it."""
    return shutil.which(name) or pytest.skip(f"{name}: not installed; tests/run installs it if Go is available")


def output(*command, stdin=None):
    done = subprocess.run(
        [str(part) for part in command], input=stdin, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, f"{command[0]}: {done.stdout}{done.stderr}"
    return done.stdout


@functools.cache
def rendered(folder):
    """The output of kustomize for a directory, as `kubectl apply -k` would send it."""
    return output(tool("kustomize"), "build", folder)


def objects(folder):
    """The same as objects, which the caller may change."""
    return copy.deepcopy(_parsed(folder))


@functools.cache
def _parsed(folder):
    return [one for one in yaml.safe_load_all(rendered(folder)) if one]


def with_component(component, overlay, folder):
    """A new overlay in `folder`: another overlay with a component."""
    paths = {"resources": overlay, "components": FOLDER / "components" / component}
    kinds = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    # kustomize accepts no absolute paths, and follows no links out of the directory.
    relative = {key: [os.path.relpath(path, folder.resolve())] for key, path in paths.items()}
    (folder / "kustomization.yaml").write_text(json.dumps(kinds | relative))
    return folder


def kubernetes_validate_errors(found):
    """The first error of each object; an unknown kind is an error too."""
    errors = []
    for one in found:
        try:
            kubernetes_validate.validate(one, VERSION, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            errors.append(f"kubernetes-validate: {one['kind']}: {error.message}")
    return errors


def kubeconform_errors(found, schemas):
    """The errors of each object; `schemas` is a directory that `write_schemas` has filled."""
    command = [tool("kubeconform"), "-strict", "-output", "json"]
    command += ["-schema-location", f"{schemas}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"]
    done = subprocess.run(
        command, input=yaml.safe_dump_all(found), capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    errors = [f"kubeconform: {one['kind']}: {one['msg']}" for one in json.loads(done.stdout)["resources"]]
    assert bool(errors) == bool(done.returncode), done.stderr
    return errors


@functools.cache
def definitions():
    """The type definitions of the Kubernetes API, from its sources."""
    if not shutil.which("go"):
        pytest.skip("go: not installed; it fetches the sources of Kubernetes")
    module = json.loads(output("go", "mod", "download", "-json", SOURCES))
    swagger = pathlib.Path(module["Dir"]) / "api" / "openapi-spec" / "swagger.json"
    return json.loads(swagger.read_text())["definitions"]


def write_schemas(folder):
    """Writes strict JSON schemas of the definitions, one file per kind, as kubeconform expects them."""
    kinds, types = {}, {}
    for name, definition in definitions().items():
        types[name] = _strict(name, definition)
        for kind in definition.get("x-kubernetes-group-version-kind", []):
            kinds[(kind["group"].split(".")[0], kind["version"], kind["kind"])] = name
    text = re.sub(r'"#/definitions/', '"types.json#/definitions/', json.dumps({"definitions": types}))
    (folder / "types.json").write_text(text)
    for (group, version, kind), name in kinds.items():
        path = folder / ("-".join(filter(None, (kind.lower(), group, version))) + ".json")
        path.write_text(json.dumps({"$ref": f"types.json#/definitions/{name}"}))
    return folder


def _strict(name, definition):
    if name.endswith(".api.resource.Quantity"):
        return {"oneOf": [{"type": "number"}, {"type": "string", "pattern": QUANTITY}]}
    if name.endswith(".util.intstr.IntOrString"):
        return {"oneOf": [{"type": "integer"}, {"type": "string"}]}
    if "properties" in definition:
        return {"additionalProperties": False} | definition
    return definition
