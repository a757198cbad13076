"""The names that a release puts into the tree, tried in a copy of it."""

import re
import shutil
import subprocess

import pytest

import clients
from processes import ROOT

pytestmark = pytest.mark.extended

SCRIPT = ".ci/release-names"
GO_MODULE = "git.shop.test/edge/tollgate/clients/go"
NAMES = {
    "--go-module": GO_MODULE,
    "--maven-group": "test.shop.edge",
    "--repository": "https://git.shop.test/edge/tollgate",
    "--pages": "https://git.shop.test/edge/tollgate/v0.1.0",
    "--package": "edge-limits",
}
TIMEOUT = 120.0


@pytest.fixture
def copy(tmp_path):
    """A copy of what git tracks, as a repository."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target, follow_symlinks=False)
    for command in (["init", "--quiet"], ["add", "--all", "--force"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


def run(folder, *arguments):
    return clients.run([folder / SCRIPT, *arguments], folder, TIMEOUT)


def given():
    return [word for pair in NAMES.items() for word in pair]


def done_well(*command, folder):
    done = clients.run(command, folder, TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_release_names_replace_all_others(copy):
    if clients.missing("go"):
        pytest.skip("go: not installed; it sorts the imports")
    refused = run(copy, "--check")
    assert refused.returncode == 1
    assert "left: clients/go/go.mod:1: module example.com/tollgate" in refused.stderr

    done = run(copy, *given())

    assert (done.returncode, done.stderr) == (0, "")
    assert run(copy, "--check").returncode == 0
    text = {name: (copy / name).read_text() for name in ("clients/go/README.md", "clients/java/pom.xml", "Cargo.toml")}
    assert f"| 0.1.0 | `go get {GO_MODULE}@v0.1.0` |" in text["clients/go/README.md"]
    assert "<groupId>test.shop.edge</groupId>" in text["clients/java/pom.xml"]
    assert f'repository = "{NAMES["--repository"]}"' in text["Cargo.toml"]
    alerts = (copy / "deploy" / "monitoring" / "prometheus-rule.yaml").read_text()
    assert set(re.findall(r"runbook_url: (\S+?)/docs/", alerts)) == {NAMES["--pages"]}
    # The reader's own registry is an example, and stays.
    assert "registry.example.com/tollgate" in (copy / "docs" / "kubernetes.md").read_text()
    done_well("go", "vet", "./...", folder=copy / "clients" / "go")
    assert done_well("gofmt", "-l", "clients/go", folder=copy) == ""
    done_well("cargo", "tree", "--locked", "--depth", "0", "--package", NAMES["--package"], folder=copy)


@pytest.mark.parametrize("spelling", ["com/example/tollgate/Limit.class", "It is Not published yet"])
def test_release_with_a_name_left_fails_and_names_it(copy, spelling):
    if clients.missing("go"):
        pytest.skip("go: not installed; it sorts the imports")
    (copy / "clients" / "more.txt").write_text(f"one\n{spelling}\n")
    subprocess.run(["git", "add", "clients/more.txt"], cwd=copy, check=True)

    done = run(copy, *given())

    assert (done.returncode, done.stderr) == (1, f"left: clients/more.txt:2: {spelling}\n")


def test_release_without_a_name_changes_nothing(copy):
    done = run(copy, *given()[2:])

    assert done.returncode == 2
    assert "--go-module: not given" in done.stderr
    assert subprocess.run(["git", "diff", "--quiet"], cwd=copy, check=False).returncode == 0
