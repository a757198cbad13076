"""Releases of the Helm chart: beside each other, what they say after the installation, and the package."""

import json
import re
import tarfile

import pytest
import yaml

import charts
from charts import CHART, MONITORED, NAMESPACE, of_kind
from manifest_checks import Overlay
from processes import ROOT

pytestmark = pytest.mark.extended


def test_releases_of_a_namespace_select_their_own_pods(tmp_path):
    values = {**MONITORED, "autoscaling": {"enabled": True}}
    ours, theirs = (charts.objects(values, tmp_path, release=name) for name in ("tollgate", "edge"))

    names = [{(one["kind"], one["metadata"]["name"]) for one in found} for found in (ours, theirs)]
    assert not names[0] & names[1]
    labels = Overlay(theirs).labels
    for selector in selectors(ours):
        assert not selector.items() <= labels.items(), selector
    seeds = [Overlay(found).variables["TOLLGATE_CLUSTER__SEED"] for found in (ours, theirs)]
    assert seeds == ["tollgate-peers:8082", "edge-tollgate-peers:8082"]
    assert [one["spec"]["scaleTargetRef"]["name"] for one in of_kind(theirs, "HorizontalPodAutoscaler")] == [
        "edge-tollgate"
    ]


def selectors(found):
    """All selectors of pods."""
    for one in found:
        text = json.dumps(one.get("spec", {}))
        for labels in re.findall(r'"(?:matchLabels|selector)": (\{[^{}]*\})', text):
            if "app.kubernetes.io/name" in labels:
                yield {key: value for key, value in json.loads(labels).items() if key != "app.kubernetes.io/component"}


def notes(values, folder):
    with charts.api_server({}, folder) as cluster:
        arguments = ["--namespace", NAMESPACE, "--dry-run=server", "--disable-openapi-validation", *cluster]
        done = charts.helm("install", "tollgate", CHART, *charts.given(values, folder), *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("NOTES:")[1]


def test_notes_name_what_is_installed(tmp_path):
    text = notes({}, tmp_path)
    for part in ("tollgate.shop.svc:8081", "dns:///tollgate-headless.shop.svc:8081", "EXAMPLE", "tollgate-cluster"):
        assert part in text
    assert "TLS" not in text

    text = notes({"ruleConfigMap": "rules", "clusterSecret": {"existing": "a"}, "serverTls": {"secret": "b"}}, tmp_path)
    assert "EXAMPLE" not in text
    assert "Upgrades keep it" not in text
    assert "gRPC needs TLS and a client certificate: Secret b." in text


def test_package_contains_the_linked_files(tmp_path):
    done = charts.helm("package", CHART, "--destination", tmp_path)
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tgz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "chart", filter="data")

    packaged, ours = (
        charts.objects({**MONITORED, "clusterSecret": {"existing": "a"}}, tmp_path, chart=chart)
        for chart in (tmp_path / "chart" / "tollgate", CHART)
    )

    assert packaged == ours
    for name in ("dashboard.json", "prometheus-rule.yaml", "edge.yaml"):
        assert (CHART / "files" / name).resolve() != CHART / "files" / name, "a link, not a copy"


def test_chart_version_equals_program_version():
    version = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE).group(1)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert (chart["version"], chart["appVersion"]) == (version, version)
