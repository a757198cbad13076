"""Lays out the image of a Dockerfile by its own statements, and runs its command. No daemon is needed, but root.

The build stage runs on this machine instead of its base image: RUN statements change a layer above the files of the
machine, which is gone afterwards. The toolchain and the caches are those of the machine.
"""

import dataclasses
import fnmatch
import json
import os
import pathlib
import re
import shlex
import shutil
import string
import subprocess

from processes import LOOPBACK, ROOT, Process

BUILD_TIMEOUT = 3000.0
TIMEOUT = 20.0
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
HOME = pathlib.Path.home()
# Cargo keeps the registry in the first.
TOOLCHAIN = [
    pathlib.Path(os.environ.get(name, HOME / folder))
    for name, folder in (("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup"))
]
CACHES = {"/usr/local/cargo/registry": TOOLCHAIN[0] / "registry", "/src/target": TARGET}

# The files of this machine below a layer of its own. Ends with its input.
MACHINE = """
    mount -t tmpfs tmpfs "$1"
    cd "$1"
    mkdir upper work root
    mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" root
    mount -t proc proc root/proc
    mount --rbind /dev root/dev
    for file in resolv.conf hosts; do
        rm -f root/etc/$file
        cat /etc/$file > root/etc/$file
    done
    shift
    for folder in "$@"; do
        mkdir -p "root$folder"
        mount --bind "$folder" "root$folder"
    done
    echo ready
    exec cat
"""
# Arguments: the root, pairs of a cache and its place joined by `=`, `--`, and the command in the root.
RUN = """
    root=$1
    shift
    while [ "$1" != -- ]; do
        mkdir -p "$root${1#*=}"
        mount --bind "${1%%=*}" "$root${1#*=}"
        shift
    done
    shift
    exec chroot "$root" "$@"
"""
# A container: the files of an image, read-only, with the mounts that any container has, and the rules.
CONTAINER = """
    image=$1 work=$2 rules=$3 place=$4
    shift 4
    mount -t tmpfs tmpfs "$work"
    cd "$work"
    mkdir upper work root
    mount -t overlay overlay -o "lowerdir=$image,upperdir=$work/upper,workdir=$work/work" root
    mkdir -p root/proc root/dev "root$place"
    mount -t proc proc root/proc
    mount --bind /dev root/dev
    mount --bind "$rules" "root$place"
    mount -o remount,bind,ro "root$place"
    mount -o remount,ro root
    exec "$@"
"""


@dataclasses.dataclass
class Statement:
    name: str
    flags: list
    text: str


def statements(dockerfile):
    text = re.sub(r"(?m)^\s*#.*\n", "", dockerfile).replace("\\\n", " ")
    for line in filter(None, map(str.strip, text.splitlines())):
        name, *words = line.split(maxsplit=1)
        flags, rest = [], words[0]
        while rest.startswith("--"):
            flag, rest = rest.split(maxsplit=1)
            flags.append(flag.removeprefix("--"))
        yield Statement(name, flags, rest)


def context(folder=ROOT):
    """The files that a build may copy, relative to `folder`. The last pattern that fits a file or a directory above it
    decides."""
    patterns = (folder / ".dockerignore").read_text().split("\n")
    patterns = [line for line in map(str.strip, patterns) if line and not line.startswith("#")]
    # Only what a pattern names is read: there are large directories that none names.
    wanted = {line[1:].split("/")[0] for line in patterns if line.startswith("!")}
    return [path for top in sorted(wanted) for path in below(folder, top) if not is_ignored(path, patterns)]


def below(folder, top):
    """The files at or below `folder / top`, relative to `folder`."""
    paths = [folder / top, *(folder / top).rglob("*")]
    return [path.relative_to(folder) for path in paths if path.is_symlink() or path.is_file()]


def is_ignored(path, patterns):
    ignored = False
    for pattern in patterns:
        parts = pattern.lstrip("!").split("/")
        if len(parts) <= len(path.parts) and all(map(fnmatch.fnmatchcase, path.parts, parts)):
            ignored = not pattern.startswith("!")
    return ignored


class Machine:
    """The files of this machine, with changes that end with it."""

    def __init__(self, folder):
        folder.mkdir()
        script = ["sh", "-euc", MACHINE, "sh", folder, *TOOLCHAIN]
        command = [str(part) for part in ["unshare", "--mount", *script]]
        self.holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.holder.stdout.readline() == "ready\n", "the files of this machine can have a layer"
        self.inside = folder / "root"
        self.files = pathlib.Path(f"/proc/{self.holder.pid}/root{self.inside}")

    def run(self, script, folder, variables, caches):
        """Runs a script of a RUN statement."""
        # Ends what the script has started too.
        enter = ["timeout", str(BUILD_TIMEOUT), "nsenter", "--target", str(self.holder.pid), "--mount"]
        enter += ["unshare", "--mount"]
        variables = [f"{name}={value}" for name, value in variables.items()]
        command = [*enter, "sh", "-euc", RUN, "sh", str(self.inside), *caches, "--"]
        command += ["env", "--chdir", folder, *variables, "sh", "-ec", script]
        # The target directory is a cache in its usual place.
        outer = {name: value for name, value in os.environ.items() if not name.startswith(("CARGO_", "TOLLGATE"))}
        outer |= {"CARGO_HOME": str(TOOLCHAIN[0]), "RUSTUP_HOME": str(TOOLCHAIN[1])}
        done = subprocess.run(
            command,
            env=outer,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"

    def stop(self):
        self.holder.stdin.close()
        self.holder.wait(TIMEOUT)


class Stage:
    """A stage: its files, and what its statements say."""

    def __init__(self, files, machine=None):
        self.files, self.machine, self.folder = files, machine, "/"
        self.labels, self.environment, self.ports = {}, {}, set()
        self.user, self.entrypoint, self.command = None, [], []


class Build:
    """Carries out the statements of a Dockerfile. A statement or a flag that it does not know is an error."""

    def __init__(self, dockerfile, folder, cleanup, arguments):
        self.folder, self.cleanup, self.given = folder, cleanup, arguments
        self.stages, self.stage, self.arguments = {}, None, {}
        for statement in statements(dockerfile.read_text()):
            getattr(self, f"_{statement.name.lower()}")(statement.text, *statement.flags)

    def _arg(self, text):
        name, default = text.split("=")
        self.arguments[name] = self.given.get(name, string.Template(default).substitute(self.arguments))

    def _from(self, text):
        base, *name = text.split(" AS ")
        self.arguments.clear()
        if base == "scratch":
            files = self.folder / "image"
            files.mkdir()
            self.stage = Stage(files)
        else:
            assert base.startswith("rust:"), f"{base} is not a base whose place this machine can take"
            machine = Machine(self.folder / "machine")
            self.cleanup.callback(machine.stop)
            self.stage = Stage(machine.files, machine)
        self.stages |= dict.fromkeys(name, self.stage)

    def _workdir(self, text):
        self.stage.folder = text
        shutil.rmtree(self._inside(text), ignore_errors=True)
        self._inside(text).mkdir(parents=True)

    def _run(self, text, *mounts):
        caches = []
        for mount in mounts:
            kind, place = re.fullmatch("mount=type=([a-z]+),target=(.+)", mount).groups()
            assert kind == "cache", mount
            caches.append(f"{CACHES[place]}={place}")
        self.stage.machine.run(text, self.stage.folder, self.arguments, caches)

    def _copy(self, text, *flags):
        *sources, destination = text.split()
        [stage] = [self.stages[flag.removeprefix("from=")] for flag in flags] or [None]
        for source in (source.lstrip("/") for source in sources):
            top = stage.files if stage else ROOT
            paths = below(top, source) if stage else [path for path in context() if path.is_relative_to(source)]
            assert paths, f"there is nothing to copy at {source}"
            for path in paths:
                if (top / source).is_dir():
                    inside = path.relative_to(source)
                else:
                    inside = path.name if destination.endswith("/") else ""
                place = self._inside(destination) / inside
                place.parent.mkdir(parents=True, exist_ok=True)
                # Its time tells cargo whether it has changed.
                shutil.copy2(top / path, place, follow_symlinks=False)

    def _label(self, text):
        self.stage.labels |= dict(word.split("=", 1) for word in shlex.split(text))

    def _env(self, text):
        self.stage.environment |= dict(word.split("=", 1) for word in shlex.split(text))

    def _expose(self, text):
        self.stage.ports |= set(map(int, text.split()))

    def _user(self, text):
        self.stage.user = text

    def _entrypoint(self, text):
        self.stage.entrypoint = json.loads(text)

    def _cmd(self, text):
        self.stage.command = json.loads(text)

    def _inside(self, path):
        return pathlib.Path(f"{self.stage.files}/{os.path.join(self.stage.folder, path)}")


class Container(Process):
    """The command of an image, or another one, in a network namespace of its own."""

    def __init__(self, image, namespace, folder, rules, command=None):
        folder.mkdir()
        self.namespace = namespace
        place = image.environment["TOLLGATE_RULES__PATH"]
        mounts = ["unshare", "--mount", "sh", "-euc", CONTAINER, "sh", image.files, folder, rules, place]
        variables = [f"{name}={value}" for name, value in image.environment.items()]
        chroot = [shutil.which("chroot"), f"--userspec={image.user}", "--groups=", folder / "root"]
        program = command or [*image.entrypoint, *image.command]
        log = folder.with_suffix(".log")
        super().__init__([*namespace.prefix, *mounts, "env", "-i", *variables, *chroot, *program], log)

    def call(self, port, *arguments):
        """An HTTP request from inside the namespace."""
        return self.namespace.call(f"{LOOPBACK}:{port}", *arguments)

    def answers(self, port, path):
        """Whether the port is open, and the path is there."""
        self.assert_running()
        try:
            return self.call(port, path).code == 200
        except OSError:
            return False

    @property
    def root(self):
        """The root of the process, as this process sees it."""
        return pathlib.Path(f"/proc/{self.child.pid}/root")

    def enter(self, command):
        """Runs a program of the image beside the process."""
        enter = ["nsenter", "--target", str(self.child.pid), "--mount", "--net", "--root", "--wd=/"]
        return subprocess.run([*enter, *command], capture_output=True, text=True, timeout=TIMEOUT, check=False)

    def status(self):
        """What the kernel says of the process."""
        lines = pathlib.Path(f"/proc/{self.child.pid}/status").read_text().splitlines()
        return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
