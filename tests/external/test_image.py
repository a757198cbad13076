"""deploy/Dockerfile: its statements build the image of the static program, which runs alone in it."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import images
import network
from processes import PACKAGES, ROOT, eventually

pytestmark = pytest.mark.extended

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
# What ships is built with `dist`. `dev` has the same code paths, libraries and linker, in a fraction of the time.
ARGUMENTS = {"PROFILE": "dev", "FOLDER": "debug"}
if profile := os.environ.get("TOLLGATE_IMAGE_PROFILE"):
    ARGUMENTS = {"PROFILE": profile}
NOBODY = 65534
GRPC, HTTP, METRICS, CLUSTER = 8081, 8080, 9090, 8082
RULES = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 2}
"""
QUESTION = '{"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}'


@pytest.mark.tools
def test_dockerfile_passes_hadolint():
    hadolint = pathlib.Path(sys.executable).parent / "hadolint"

    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, timeout=120, check=False)

    assert (done.returncode, done.stdout) == (0, "")


@pytest.fixture(scope="module")
def image(module_cleanup, tmp_path_factory):
    for what, missing in (("mount", network.mounts_missing), ("network", network.Namespaces.missing)):
        if reason := missing():
            pytest.skip(f"{what} namespaces: {reason}")
    if lacking := [tool for tool in ("apt-get", "rustup") if not shutil.which(tool)]:
        pytest.skip(f"{lacking[0]}: not installed")
    return images.Build(DOCKERFILE, tmp_path_factory.mktemp("image"), module_cleanup, ARGUMENTS).stage


@pytest.fixture
def start_container(image, cleanup, tmp_path):
    """Runs the image, or another command in it."""
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "edge.yaml").write_text(RULES)
    namespaces = network.Namespaces()
    cleanup.callback(namespaces.remove)

    def start(name="container", **options):
        container = images.Container(image, namespaces.add(), tmp_path / name, rules, **options)
        cleanup.callback(container.kill)
        return container

    return start


def test_base_image_has_rust_of_manifest():
    version = re.search(r"^ARG RUST=(.+)$", DOCKERFILE.read_text(), re.MULTILINE).group(1)

    assert f'rust-version = "{version}"' in (ROOT / "Cargo.toml").read_text()


def test_build_context_is_exactly_the_sources():
    source = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    tracked = source.stdout.splitlines()

    tops = ("Cargo.toml", "Cargo.lock", "LICENSE", "benches/", "clients/rust/", *(f"{package}/" for package in PACKAGES), "proto/", "src/")
    wanted = {path for path in tracked if path.startswith(tops) or re.fullmatch(r"examples/[^/]+\.rs", path)}
    found = {str(path) for path in images.context() if "__pycache__" not in path.parts}
    assert found == wanted


def test_image_contains_only_program_and_its_files(image):
    files = image.files

    found = set(map(str, images.below(files, "")))
    assert found == {"tollgate", "LICENSE", "etc/ssl/certs/ca-certificates.crt", "bin/ratelimit"}
    assert (files / "tollgate").stat().st_mode & 0o777 == 0o755
    assert (files / "bin" / "ratelimit").readlink() == pathlib.Path("/tollgate")
    assert "BEGIN CERTIFICATE" in (files / "etc/ssl/certs/ca-certificates.crt").read_text()
    assert image.labels["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_image_answers_as_nobody_on_read_only_root(image, start_container):
    container = start_container()

    eventually("the service is ready", lambda: container.answers(HTTP, "/readyz"))
    assert image.ports == {GRPC, HTTP, METRICS, CLUSTER}
    codes = [container.call(HTTP, "/json", "POST", {}, QUESTION).code for _ in range(2)]
    asked = container.enter([*image.entrypoint, "ask", "edge", "user=ann"])
    assert codes == [200, 200]
    assert (asked.returncode, asked.stdout.partition("\n")[0]) == (2, "over limit"), asked
    assert 'tollgate_decisions_total' in container.call(METRICS, "/metrics").body

    status = container.status()
    assert (status["Uid"], status["Gid"], status["Groups"]) == ([str(NOBODY)] * 4, [str(NOBODY)] * 4, [])
    assert int(status["CapEff"][0], 16) == 0
    with pytest.raises(OSError, match="Read-only file system"):
        (container.root / "file").touch()

    container.terminate()
    assert container.wait(60.0) == 0, container.output()


def test_command_of_envoyproxy_ratelimit_starts_service(start_container):
    container = start_container(command=["/bin/ratelimit"])

    eventually("the service is alive", lambda: container.answers(HTTP, "/livez"))
