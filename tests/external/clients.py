"""Builds the client packages, each in a copy of its directory, and runs their tools. As a program it builds
each package whose tools are installed, so that no test waits for a registry."""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

from processes import ROOT

PACKAGES = ROOT / "clients"
PROTO = ROOT / "proto"
# What the suite of every package uses: the cases that it replays, what starts its servers, and the rules of its largest
# example.
VECTORS = PACKAGES / "vectors"
BESIDE = (PACKAGES / "test_server.py", PACKAGES / "llm.yaml")
BUILDS = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "clients"
BUILD_TIMEOUT = 600.0
RUN_TIMEOUT = 30.0
# The command that builds each package.
SETUP = {
    # With the tests, which take longer to compile than to run.
    "go": "go vet ./... && go test -run '^$' ./...",
    "python": "python3 -m venv .venv && .venv/bin/pip install --quiet '.[test]'",
    "node": "npm install --no-package-lock --no-audit --no-fund",
    "java": "mvn -q -B test-compile",
}
# Tools of each language, besides Python, which runs the tests.
TOOLS = {"go": ["go"], "java": ["java", "javac", "mvn"], "node": ["node", "npm"], "python": [], "rust": ["cargo"]}
# Build artefacts in the source tree.
LEFTOVERS = {"java": ["target"], "node": ["node_modules"], "python": [".venv", "build", "*.egg-info"]}
# Programs in Java end too soon for the second compiler to pay: without it they take a third less processor time.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
# Variables of the caller's shell that would redirect the build.
UNSET = ("CARGO_TARGET_DIR", "CARGO_BUILD_TARGET", "CARGO_BUILD_TARGET_DIR", "VIRTUAL_ENV", "PYTHONPATH", "GOFLAGS")


def missing(language):
    """Tools of a language that are not installed."""
    return [tool for tool in TOOLS[language] if shutil.which(tool) is None]


def install(language):
    """Builds a package in a copy, beside copies of proto/ and of what the suites use as in the repository. Returns the
    copy. Reuses that of an earlier run with the same files."""
    setup = SETUP[language]
    source, home = PACKAGES / language, BUILDS / "packages" / language
    folder = home / source.relative_to(ROOT)
    marker, built_from = home / "made-from", fingerprint(source, setup)
    with locked(language):
        if not marker.exists() or marker.read_text() != built_from:
            leftovers = shutil.ignore_patterns("__pycache__", *LEFTOVERS.get(language, []))
            shutil.rmtree(home, ignore_errors=True)
            # Without file times, so that copied files are newer than built ones.
            shutil.copytree(source, folder, ignore=leftovers, copy_function=shutil.copy)
            for beside in (PROTO, VECTORS):
                shutil.copytree(beside, home / beside.relative_to(ROOT), copy_function=shutil.copy)
            for beside in BESIDE:
                shutil.copy(beside, home / beside.relative_to(ROOT))
            done = run(["bash", "-euo", "pipefail", "-c", setup], folder, BUILD_TIMEOUT)
            assert done.returncode == 0, f"{setup}\n{done.stdout}\n{done.stderr}"
            marker.write_text(built_from)
    return folder


def checkout(language, folder):
    """Copies what a user of a package needs of the repository to `folder`, because installing leaves files there."""
    leftovers = shutil.ignore_patterns("__pycache__", *LEFTOVERS.get(language, []))
    shutil.copytree(PACKAGES / language, folder / "clients" / language, ignore=leftovers)
    shutil.copytree(PROTO, folder / "proto")
    shutil.copy(ROOT / "LICENSE", folder)


@contextlib.contextmanager
def locked(name):
    """Waits while another process of the tests builds the same."""
    BUILDS.mkdir(parents=True, exist_ok=True)
    with (BUILDS / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def generate_go(folder, target):
    """Generates `gen/` of the package in Go into `target`, with the compiler of the tests' environment."""
    # The options that buf would pass to the plugins.
    options = ",".join(re.findall(r"^ +- (paths=\S+|M\S+)$", (folder / "buf.gen.yaml").read_text(), re.MULTILINE))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTO}"]
    for name in ("go", "go-grpc"):
        plugin = run(["go", "tool", "-n", f"protoc-gen-{name}"], folder, BUILD_TIMEOUT)
        assert plugin.returncode == 0, plugin.stderr
        command += [f"--plugin=protoc-gen-{name}={plugin.stdout.strip()}"]
        command += [f"--{name}_out={target}", f"--{name}_opt={options}"]
    # Other files are not part of the client API, or their Go code is that of another module.
    client_protos = [PROTO / name for name in re.findall(r"\bM([^,]+?\.proto)=[^,]*/gen/", options)]
    done = run([*command, *client_protos], folder, RUN_TIMEOUT)
    assert done.returncode == 0, done.stderr


def blocks(text, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def fingerprint(source, setup):
    """A hash of all that the package is built from."""
    language = source.name
    files = [__file__, *BESIDE]
    for folder in (source, PROTO, VECTORS):
        inside = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
        leftovers = {"__pycache__", *LEFTOVERS.get(language, [])}
        files += [folder / path for path in inside if folder != source or path.parts[0] not in leftovers]
    digest = hashlib.sha256(setup.encode())
    for path in files:
        content = pathlib.Path(path).read_bytes()
        digest.update(f"{path} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def run(command, folder, timeout, **variables):
    environment = {name: value for name, value in os.environ.items() if name not in UNSET}
    environment |= {"JAVA_TOOL_OPTIONS": JAVA_OPTIONS} | variables
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


if __name__ == "__main__":
    for each in SETUP:
        if not missing(each):
            install(each)
