"""How servers are started and called, and our own ones. All of them listen on the loopback only."""

import contextlib
import datetime
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "clients"))

import test_server

LOOPBACK = "127.0.0.1"
SERVER_CORE, CLIENT_CORE = "0", "1"
EVERY_CORE = f"0-{os.cpu_count() - 1}"
TIMEOUT = 30.0
# The value of the descriptor that tells one key from another.
USER = "user-000000-of-the-key-space"


class Unavailable(Exception):
    """A server that cannot be measured on this machine, with the reason."""


def eventually(what, condition, timeout=TIMEOUT, interval=0.01):
    """Waits until `condition()` returns a true value, and returns it."""
    return test_server.eventually(what, condition, timeout, Unavailable, interval)


def shell(*command, timeout=3600, **options):
    """Runs a command and returns its output; the error of a failed command has the end of its output."""
    done = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
        **options,
    )
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-5:])
        raise Unavailable(f"{' '.join(str(part) for part in command[:3])}: exit code {done.returncode}\n{last}")
    return done.stdout


def target():
    """The target directory of cargo."""
    metadata = shell("cargo", "metadata", "--locked", "--no-deps", "--format-version", "1", cwd=ROOT)
    return pathlib.Path(json.loads(metadata[metadata.index("{") :])["target_directory"])


def log_progress(text):
    print(text, file=sys.stderr, flush=True)


# Encoding of Protocol Buffers messages.


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out + bytes([number]))


def field(number, value):
    """A field: integers as varints, other values length-delimited."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def framed(message):
    return b"\0" + len(message).to_bytes(4, "big") + message


class Server:
    """A running server, pinned to a core: ready inside its `with` block, stopped after it."""

    name = path = address = None
    core = SERVER_CORE

    def __init__(self, command, log, environment=None):
        self.log = pathlib.Path(log)
        base = {"PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "/")}
        with self.log.open("wb") as output:
            self.child = subprocess.Popen(
                ["taskset", "-c", self.core, *(str(part) for part in command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=base | (environment or {}),
            )

    @property
    def pid(self):
        # taskset executes the command in its own process.
        return self.child.pid

    @property
    def pids(self):
        return [self.pid]

    def assert_running(self):
        if self.child.poll() is not None:
            last = self.log.read_text(errors="replace")[-500:]
            raise Unavailable(f"{self.name} exited with {self.child.returncode}: {last}")

    def __enter__(self):
        try:
            self.await_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def await_ready(self):
        self.await_listening()

    def await_listening(self):
        def listens():
            self.assert_running()
            with contextlib.suppress(OSError), socket.create_connection(self.address, 1):
                return True
            return False

        eventually(f"{self.name} listens", listens)

    def stop(self):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(10)
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait(TIMEOUT)


def free_port():
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        return sock.getsockname()[1]


class Tollgate(Server):
    name = "Tollgate"
    path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    # A limit that is never reached: a refusal would have another cost.
    RULE = {
        "key": "tenant",
        "descriptors": [{"key": "user", "rate_limit": {"unit": "hour", "requests_per_unit": 4_000_000_000}}],
    }

    @staticmethod
    def body(user=USER):
        entries = field(1, field(1, "tenant") + field(2, "acme-corporation")) + field(
            1, field(1, "user") + field(2, user)
        )
        return framed(field(1, "benchmark") + field(2, entries))

    @staticmethod
    def obtain(folder):
        log_progress("building tollgate")
        shell("cargo", "build", "--profile", "dist", "--locked", "--bin", "tollgate", cwd=ROOT)
        return folder / "dist" / "tollgate"

    def __init__(self, binary, scratch, *flags):
        # In its own directory: other changes beside a rule file would make the server read it again.
        self.rules = scratch / "rules" / "rules.yaml"
        self.rules.parent.mkdir(exist_ok=True)
        self.replace_rules(self.rule_file("first.yaml", []))
        anywhere = f"{LOOPBACK}:0"
        super().__init__(
            [binary, "serve", "--rules", self.rules, "--grpc-listen", anywhere, "--http-listen", anywhere]
            + ["--admin-listen", anywhere, "--metrics-listen", anywhere, "--log-format", "json"]
            + ["--drain-delay", "0s", *flags],
            scratch / "tollgate.log",
        )

    def await_ready(self):
        self.listeners = eventually("Tollgate listens", self._listeners)
        host, port = self.listeners["grpc"].rsplit(":", 1)
        self.address = (host, int(port))
        eventually("Tollgate has loaded its rules", self.generations)

    def rule_file(self, name, more):
        """A file of this name with the rule and `more`."""
        file = self.rules.parent.with_name(name)
        # JSON is YAML too.
        lines = ",\n".join(json.dumps(rule) for rule in [self.RULE, *more])
        file.write_text(f'{{"domain": "benchmark", "descriptors": [\n{lines}\n]}}\n')
        return file

    def replace_rules(self, rule_file):
        """Activates a file by a rename, like a deployment. The file is already written, so this takes no time."""
        new = self.rules.with_suffix(".new")
        # A rename between two links of the same file leaves it behind.
        new.unlink(missing_ok=True)
        os.link(rule_file, new)
        new.replace(self.rules)

    def events(self):
        return test_server.log_events(self.log.read_text(errors="replace"))

    def generations(self):
        """When each generation of rules became active, by the log of the server: seconds since 1970."""
        self.assert_running()
        active = [event for event in self.events() if event.get("message") == "new rules are active"]
        return [datetime.datetime.fromisoformat(event["timestamp"]).timestamp() for event in active]

    def _listeners(self):
        self.assert_running()
        return test_server.listeners(self.events())


class BareH2(Server):
    """The h2 crate alone, which answers every call with an empty message."""

    name = "bare h2"
    path = "/bare/Call"
    body = staticmethod(Tollgate.body)

    @staticmethod
    def obtain(folder):
        log_progress("building the bare server")
        shell("cargo", "build", "--profile", "dist", "--locked", "--example", "bare_h2", cwd=ROOT)
        return folder / "dist" / "examples" / "bare_h2"

    def __init__(self, binary, scratch):
        super().__init__([binary], scratch / "bare_h2.log")

    def await_ready(self):
        def printed():
            self.assert_running()
            return self.log.read_text().endswith("\n")

        eventually("the bare server has an address", printed)
        host, port = self.log.read_text().strip().rsplit(":", 1)
        self.address = (host, int(port))
