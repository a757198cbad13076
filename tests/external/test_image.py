"""deploy/Dockerfile: its steps, on stubs of the base images, which a test cannot fetch."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from processes import ROOT

pytestmark = pytest.mark.extended

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
BASE = "rust:1.95-slim-bookworm"
TIMEOUT = 120.0

# Stub programs of the base image. Each does what the steps rely on, and refuses anything else.
# The compiler is a stub, so that a test needs no network and no ten minutes.
PROGRAMS = {
    "apt-get": """
        case "$1" in
          update) mkdir -p /var/lib/apt/lists ;;
          install) [ "$*" = "install --yes --no-install-recommends musl-tools" ] && : > /usr/bin/musl-gcc ;;
          *) exit 1 ;;
        esac
    """,
    "rustup": """
        [ "$1 $2" = "target add" ] && : > "/added-$3"
    """,
    "cargo": """
        [ "$1 $2 $3 $4" = "build --release --locked --target" ] || exit 1
        [ -e "/added-$5" ] && [ -e /usr/bin/musl-gcc ] && [ -e Cargo.lock ] || exit 1
        mkdir -p "target/$5/release"
        echo program > "target/$5/release/tollgate"
        chmod 755 "target/$5/release/tollgate"
    """,
}


def test_dockerfile_passes_hadolint():
    hadolint = pathlib.Path(sys.executable).parent / "hadolint"

    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, timeout=TIMEOUT, check=False)

    assert (done.returncode, done.stdout) == (0, "")


class Buildah:
    """Builds images in its own directory."""

    def __init__(self, folder):
        self.folder = folder
        self.command = ["buildah", "--root", folder / "images", "--runroot", folder / "run"]
        self.command += ["--storage-driver", "vfs"]

    def __call__(self, *arguments):
        # Caches and temporary files are in the same directory.
        environment = os.environ | {"TMPDIR": str(self.folder)}
        command = [str(part) for part in [*self.command, *arguments]]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, check=False, env=environment, cwd=ROOT
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def assert_running(self, container):
        """Skips the test if this machine does not allow chroot."""
        try:
            self("run", "--isolation", "chroot", container, "--", "/bin/sh", "-c", ":")
        except AssertionError as error:
            pytest.skip(f"buildah cannot run anything here: {error}")

    def files(self, image):
        """The directory where the files of an image are mounted."""
        return pathlib.Path(self("mount", self("from", "--pull-never", image)))

    def build(self, tag, *more):
        self("build", "--pull-never", "--isolation", "chroot", "-f", DOCKERFILE, "-t", tag, *more, ROOT)
        return tag


@pytest.fixture(scope="module")
def buildah(tmp_path_factory):
    if not shutil.which("buildah") or os.geteuid() != 0:
        pytest.skip("buildah or root is missing; tests/run installs buildah if it can")
    folder = tmp_path_factory.mktemp("buildah")
    buildah = Buildah(folder)
    container = buildah("from", "scratch")
    buildah("copy", container, stub_base(folder / "base"), "/")
    buildah("commit", container, BASE)
    buildah.assert_running(container)
    yield buildah
    # Files of images have owners and modes that pytest may be unable to remove.
    buildah("rm", "--all")
    buildah("rmi", "--all", "--force")


def stub_base(folder):
    """A base with a shell, a few programs of this machine and the stub programs."""
    for program in ("sh", "chmod", "cp", "ln", "mkdir", "rm", "uname"):
        path = shutil.which(program)
        linked = subprocess.run(["ldd", path], capture_output=True, text=True, timeout=TIMEOUT, check=True).stdout
        for source in [path, *re.findall(r"(/\S+) \(0x", linked)]:
            place = folder / ("bin/" + program if source == path else source.lstrip("/"))
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, place)
    for program, script in PROGRAMS.items():
        path = folder / "usr" / "bin" / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\nset -e\n{script}")
        path.chmod(0o755)
    authorities = folder / "etc" / "ssl" / "certs" / "ca-certificates.crt"
    authorities.parent.mkdir(parents=True)
    authorities.write_text("authorities\n")
    return folder


def test_stub_base_image_is_named_like_the_base():
    text = DOCKERFILE.read_text()
    version = re.search(r"^ARG RUST=(.+)$", text, re.MULTILINE).group(1)
    base = re.search(r"^FROM (\S+) AS build$", text, re.MULTILINE).group(1)

    assert base.replace("${RUST}", version) == BASE
    assert f'rust-version = "{version}"' in (ROOT / "Cargo.toml").read_text()


def test_image_contains_only_program_and_its_files(buildah):
    files = buildah.files(buildah.build("tollgate"))

    found = {str(path.relative_to(files)) for path in files.rglob("*") if path.is_file()}
    assert found == {"tollgate", "LICENSE", "etc/ssl/certs/ca-certificates.crt"}
    assert (files / "tollgate").stat().st_mode & 0o777 == 0o755
    links = {str(path.relative_to(files)): path.readlink() for path in files.rglob("*") if path.is_symlink()}
    assert links == {"bin/ratelimit": pathlib.Path("/tollgate")}


def test_image_runs_service_as_user_nobody(buildah):
    image = json.loads(buildah("inspect", "--type", "image", buildah.build("tollgate")))["OCIv1"]["config"]

    assert (image["User"], image["Entrypoint"], image["Cmd"]) == ("65534:65534", ["/tollgate"], ["serve"])
    assert "TOLLGATE_RULES__PATH=/etc/tollgate/rules" in image["Env"]
    assert set(image["ExposedPorts"]) == {f"{port}/tcp" for port in (8080, 8081, 8082, 9090)}
    assert image["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_build_context_is_exactly_the_sources(buildah):
    source = buildah.files(buildah.build("stage", "--target", "build")) / "src"

    parts = [ROOT / name for name in ("Cargo.toml", "Cargo.lock", "build.rs")]
    parts += (ROOT / "examples").glob("*.rs")
    parts += [path for name in ("benches", "proto", "src") for path in (ROOT / name).rglob("*") if path.is_file()]
    wanted = {str(path.relative_to(ROOT)) for path in parts}
    assert {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()} == wanted

    # cargo requires a file for every target of the manifest.
    command = ["cargo", "metadata", "--no-deps", "--offline", "--format-version", "1"]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
