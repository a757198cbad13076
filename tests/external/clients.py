"""Builds the example clients, each in a copy of its folder and by the commands in its README."""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess

from processes import LOOPBACK, ROOT

EXAMPLES = ROOT / "examples"
PROTO = ROOT / "proto"
BUILDS = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "clients"
BUILD_PATIENCE = 600.0
RUN_PATIENCE = 30.0
# What the languages' tools need, beside Python, which runs the tests.
TOOLS = {"go": ["go"], "java": ["java", "javac", "mvn"], "node": ["node", "npm"], "python": [], "rust": ["cargo"]}
# What builds in the source tree leave behind.
LEFTOVERS = {"java": ["target"], "node": ["node_modules"], "python": [".venv", "envoy"], "rust": ["target"]}
# Settings of the caller's shell that would lead to other places than the README says.
UNSET = ("CARGO_TARGET_DIR", "CARGO_BUILD_TARGET", "CARGO_BUILD_TARGET_DIR", "VIRTUAL_ENV", "PYTHONPATH", "GOFLAGS")


@dataclasses.dataclass(frozen=True)
class Client:
    """A client that is built: the command that starts it, in its folder."""

    folder: pathlib.Path
    command: list

    def run(self, to, *arguments, timeout_ms=10_000):
        """Asks; the deadline is long, so that a busy machine is not taken for an outage."""
        command = [*self.command, "--to", to, "--timeout", str(timeout_ms), *arguments]
        return run(command, self.folder, RUN_PATIENCE)


def missing(language):
    """The tools of a language that are not installed."""
    return [tool for tool in TOOLS[language] if shutil.which(tool) is None]


def build(language):
    """Builds the client, or takes the one that an earlier run has built from the same files."""
    home = BUILDS / language
    folder = home / "examples" / language
    setup, command = readme_blocks(EXAMPLES / language / "README.md")
    mark, made_from = home / "made-from", fingerprint(language)
    if not mark.exists() or mark.read_text() != made_from:
        leftovers = shutil.ignore_patterns("__pycache__", *LEFTOVERS.get(language, []))
        with contextlib.ExitStack() as stack:
            if language == "rust":
                # The libraries that an earlier build has compiled take longest of all.
                stack.enter_context(kept(folder / "target"))
            shutil.rmtree(home, ignore_errors=True)
            # Without the times of the files: what is copied is newer than what was built.
            shutil.copytree(EXAMPLES / language, folder, ignore=leftovers, copy_function=shutil.copy)
            shutil.copytree(PROTO, home / "proto", copy_function=shutil.copy)
        if language == "rust":
            # The versions that the service was built with, which are there already.
            shutil.copy(ROOT / "Cargo.lock", folder)
        done = run(["bash", "-euo", "pipefail", "-c", setup], folder, BUILD_PATIENCE)
        assert done.returncode == 0, f"{setup}\n{done.stdout}\n{done.stderr}"
        mark.write_text(made_from)
    return Client(folder, shlex.split(command.split(" --to ")[0]))


@contextlib.contextmanager
def kept(folder):
    """Keeps a folder, if it is there, while what is around it is made anew."""
    aside = BUILDS / "kept"
    shutil.rmtree(aside, ignore_errors=True)
    if folder.exists():
        folder.rename(aside)
    yield
    if aside.exists():
        aside.rename(folder)


def grpcurl(to):
    """Runs the command that the main page shows, against `to`."""
    page = (ROOT / "README.md").read_text()
    command = next(block for block in blocks(page, "sh") if "grpcurl" in block)
    assert f"{LOOPBACK}:8081" in command
    return run(["bash", "-c", command.replace(f"{LOOPBACK}:8081", to)], ROOT, BUILD_PATIENCE)


def generate_go(target):
    """Generates the Go client's `gen/` into `target`, with the compiler of the Python client."""
    folder = EXAMPLES / "go"
    # The options that buf would pass on.
    options = ",".join(re.findall(r"^ +- (paths=\S+|M\S+)$", (folder / "buf.gen.yaml").read_text(), re.MULTILINE))
    command = [build("python").folder / ".venv/bin/python", "-m", "grpc_tools.protoc", f"--proto_path={PROTO}"]
    for name in ("go", "go-grpc"):
        plugin = run(["go", "tool", "-n", f"protoc-gen-{name}"], folder, BUILD_PATIENCE)
        assert plugin.returncode == 0, plugin.stderr
        command += [f"--plugin=protoc-gen-{name}={plugin.stdout.strip()}"]
        command += [f"--{name}_out={target}", f"--{name}_opt={options}"]
    # What replicas tell each other is no client's business.
    spoken = [path for path in PROTO.rglob("*.proto") if path.relative_to(PROTO).parts[0] != "tollgate"]
    done = run([*command, *spoken], folder, RUN_PATIENCE)
    assert done.returncode == 0, done.stderr


def readme_blocks(path):
    """The commands that set a client up, and the one that runs it."""
    setup, command = blocks(path.read_text(), "sh")
    return setup, command


def blocks(text, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def fingerprint(language):
    """Changes when anything changes that the client is built from."""
    files = [__file__, ROOT / "Cargo.lock"] if language == "rust" else [__file__]
    for folder in (EXAMPLES / language, PROTO):
        inside = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
        leftovers = {"__pycache__", *LEFTOVERS.get(language, [])}
        files += [folder / path for path in inside if folder == PROTO or path.parts[0] not in leftovers]
    digest = hashlib.sha256()
    for path in files:
        content = pathlib.Path(path).read_bytes()
        digest.update(f"{path} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def run(command, folder, patience):
    environment = {name: value for name, value in os.environ.items() if name not in UNSET}
    # Without debugging information the Rust client is built in less time.
    environment["CARGO_PROFILE_DEV_DEBUG"] = "0"
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience,
        check=False,
    )
