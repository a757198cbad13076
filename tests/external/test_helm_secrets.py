"""The Secret of the cluster in the Helm chart: generated once, kept by upgrades, or given."""

import base64

import pytest
import yaml

import charts
from charts import of_kind
from manifest_checks import Overlay
from processes import LISTENERS, LOOPBACK, TOLLGATE, Process, eventually

pytestmark = pytest.mark.extended

SECRET = "templates/cluster-secret.yaml"


def generated_secret(done):
    assert done.returncode == 0, done.stderr
    return base64.b64decode(yaml.safe_load(done.stdout)["data"]["secret"]).decode()


def test_new_release_generates_a_good_cluster_secret(tmp_path, cleanup, rule_file):
    first, second = (generated_secret(charts.render({}, tmp_path, "--show-only", SECRET)) for _ in range(2))

    assert first != second
    assert len(first) >= 32
    # The program refuses a secret that can be guessed.
    path = tmp_path / "secret"
    path.write_text(first)
    rules = rule_file("domain: edge\ndescriptors: []\n")
    flags = ["--cluster-listen", f"{LOOPBACK}:0", "--cluster-seed", f"{LOOPBACK}:1", "--cluster-secret-file", path]
    listeners = [part for name in LISTENERS for part in (f"--{name}-listen", f"{LOOPBACK}:0")]
    process = Process([TOLLGATE, "serve", "--rules", rules, *listeners, *flags], tmp_path / "log")
    cleanup.callback(process.kill)
    eventually("the replica joins", lambda: process.assert_running() or "joined the cluster" in process.output())


@pytest.mark.parametrize("edited", [None, "old secret of the cluster\nnew secret of the cluster\n"])
def test_upgrade_keeps_the_cluster_secret(edited, tmp_path):
    (installed,) = of_kind(charts.objects({}, tmp_path), "Secret")
    if edited:
        installed["data"]["secret"] = base64.b64encode(edited.encode()).decode()

    with charts.api_server({installed["metadata"]["name"]: installed["data"]}, tmp_path) as cluster:
        done = charts.render({"replicas": 5}, tmp_path, "--show-only", SECRET, "--dry-run=server", *cluster)

    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["data"] == installed["data"]


def test_existing_cluster_secret_is_not_rendered(tmp_path):
    overlay = Overlay(charts.objects({"clusterSecret": {"existing": "mine", "key": "words"}}, tmp_path))

    assert overlay.all("Secret") == []
    volume = overlay.volumes["cluster-secret"]
    assert volume["secret"]["secretName"] == "mine"
    assert volume["secret"]["items"] == [{"key": "words", "path": "secret"}]
