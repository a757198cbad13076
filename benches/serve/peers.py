"""The other servers that are compared: how each is built, started and called."""

import contextlib
import http.client
import json
import os
import shutil
import sys

from servers import (
    LOOPBACK,
    USER,
    BareH2,
    Server,
    Tollgate,
    Unavailable,
    eventually,
    field,
    framed,
    free_port,
    log_progress,
    shell,
)

THROTTLECRAB = "0.4.40"
GUBERNATOR = "2.13.0"
GUBERNATOR_MODULE = "github.com/gubernator-io/gubernator/v2"
# Go verifies the download with these sums, so that the published version is measured.
GUBERNATOR_SUMS = {
    "": "h1:kvY3ppEpKBnUCKGLXBXO9QT/HQTpQVTwLzpQe6asOu0=",
    "/go.mod": "h1:jHkFFXCkRmxI5/4HOK052gls1uXiYzcvtrmCzhsIY+0=",
}
LIMITADOR = "2.4.0"
# Provides protoc, which throttlecrab-server needs to build, if it is not installed.
GRPC_TOOLS = "1.85.1"


class Throttlecrab(Server):
    name = f"throttlecrab {THROTTLECRAB}"
    path = "/throttlecrab.RateLimiter/Throttle"

    @staticmethod
    def body(user=USER):
        key, burst, count, period, hits = (
            f"benchmark acme-corporation {user}",
            *[2_000_000_000] * 2,
            60,
            1,
        )
        return framed(field(1, key) + field(2, burst) + field(3, count) + field(4, period) + field(5, hits))

    @staticmethod
    def obtain(folder):
        peers = folder / "peers"
        binary = peers / "bin" / "throttlecrab-server"
        if not binary.exists():
            log_progress(f"building throttlecrab-server {THROTTLECRAB} into {peers}")
            environment = os.environ | {"CARGO_TARGET_DIR": str(peers / "build")}
            if not shutil.which("protoc"):
                environment["PROTOC"] = str(protoc(peers))
            shell(
                *("cargo", "install", "throttlecrab-server", "--version", THROTTLECRAB, "--locked"),
                *("--root", peers),
                env=environment,
            )
        return binary

    def __init__(self, binary, scratch):
        self.address = (LOOPBACK, free_port())
        super().__init__(
            [binary, "--grpc", "--grpc-host", LOOPBACK, "--grpc-port", self.address[1], "--log-level", "warn"],
            scratch / "throttlecrab.log",
        )


def protoc(peers):
    """A protoc from a Python package, for machines without one."""
    wrapper = peers / "protoc"
    if not wrapper.exists():
        python = peers / "python"
        shell(sys.executable, "-m", "venv", python)
        shell(python / "bin" / "pip", "install", "--quiet", f"grpcio-tools=={GRPC_TOOLS}")
        wrapper.write_text(f'#!/bin/sh\nexec "{python}/bin/python" -m grpc_tools.protoc "$@"\n')
        wrapper.chmod(0o755)
    return wrapper


def build_go_peer(peers, name, source, sums):
    """The program of a package of a Go module: (module, version, package). Go verifies the download with the sums."""
    module, version, package = source
    binary = peers / "bin" / name
    if binary.exists():
        return binary
    if not shutil.which("go"):
        raise Unavailable("Go is not installed")
    log_progress(f"building {module} {version} into {peers}")
    folder = peers / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "go.mod").write_text(f"module peers\n\nrequire {module} {version}\n")
    (folder / "go.sum").write_text("".join(f"{module} {version}{of} {value}\n" for of, value in sums.items()))
    found = shell("go", "mod", "download", "-json", module, cwd=folder)
    downloaded = json.loads(found[found.index("{") :])["Dir"]
    # In its own directory, with the checksums of its dependencies.
    shell("go", "build", "-mod=readonly", "-buildvcs=false", "-o", binary, package, cwd=downloaded)
    return binary


class Gubernator(Server):
    name = f"gubernator {GUBERNATOR}"
    path = "/pb.gubernator.V1/GetRateLimits"

    @staticmethod
    def body(user=USER):
        limit = field(1, "benchmark") + field(2, f"acme-corporation {user}")
        limit += field(3, 1) + field(4, 4_000_000_000) + field(5, 3_600_000)
        return framed(field(1, limit))

    @staticmethod
    def obtain(folder):
        source = GUBERNATOR_MODULE, f"v{GUBERNATOR}", "./cmd/gubernator"
        return build_go_peer(folder / "peers", "gubernator", source, GUBERNATOR_SUMS)

    def __init__(self, binary, scratch, number=0, members=1, seed=None):
        """A member of a cluster, with its number; `seed` is the gossip address of the first one."""
        # Members are told apart by their IP address and by the name of their host.
        host = f"127.0.0.{1 + number}"
        named = ["unshare", "--user", "--map-root-user", "--uts", "sh", "-c", 'hostname "$1" && shift && exec "$@"', "sh"]
        prefix = [] if members == 1 else [*named, f"member-{number}"]
        grpc, self.web, self.gossip = (f"{host}:{free_port()}" for _ in range(3))
        self.address = (host, int(grpc.rsplit(":", 1)[1]))
        self.members = members
        environment = {
            "GUBER_GRPC_ADDRESS": grpc,
            "GUBER_HTTP_ADDRESS": self.web,
            "GUBER_ADVERTISE_ADDRESS": grpc,
            "GUBER_MEMBERLIST_ADDRESS": self.gossip,
            "GUBER_MEMBERLIST_BIND_ADDRESS": self.gossip,
            "GUBER_MEMBERLIST_ADVERTISE_ADDRESS": grpc,
            "GUBER_MEMBERLIST_KNOWN_NODES": seed or self.gossip,
            "GUBER_LOG_LEVEL": "error",
        }
        super().__init__([*prefix, binary], scratch / "gubernator.log", environment)

    def await_ready(self):
        self.await_listening()

        def healthy():
            self.assert_running()
            host, port = self.web.rsplit(":", 1)
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection(host, int(port), timeout=5)
                connection.request("GET", "/v1/HealthCheck")
                return json.loads(connection.getresponse().read()).get("peer_count") == self.members
            return False

        eventually(f"gubernator is a cluster of {self.members}", healthy)


class Limitador(Server):
    """Counters in its memory. It is in no package registry, so it is measured where it is installed."""

    name = f"Limitador {LIMITADOR}"
    path = Tollgate.path
    body = staticmethod(Tollgate.body)

    @staticmethod
    def obtain(folder):
        program = folder / "peers" / "bin" / "limitador-server"
        found = str(program) if program.exists() else shutil.which("limitador-server")
        if not found:
            raise Unavailable(f"there is no limitador-server, neither on the PATH nor as {program}")
        version = shell(found, "--version")
        if LIMITADOR not in version:
            raise Unavailable(f"{found} is {version.strip()}")
        return found

    def __init__(self, binary, scratch):
        limit = {"namespace": "benchmark", "seconds": 3_600, "max_value": 4_000_000_000, "conditions": []}
        limit["variables"] = ["descriptors[0].tenant", "descriptors[0].user"]
        limits = scratch / "limitador.yaml"
        # JSON is YAML too.
        limits.write_text(json.dumps([limit]))
        self.address = (LOOPBACK, free_port())
        flags = ["--rls-ip", LOOPBACK, "--rls-port", self.address[1]]
        flags += ["--http-ip", LOOPBACK, "--http-port", free_port()]
        super().__init__([binary, *flags, limits, "memory"], scratch / "limitador.log")


ALL = [Tollgate, Throttlecrab, Gubernator, Limitador, BareH2]
