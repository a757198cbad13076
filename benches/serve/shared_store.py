"""Redis, and the servers that keep their counters in it. All of them listen on the loopback only."""

import contextlib
import http.client
import json
import os
import socket

from peers import build_go_peer
from servers import LOOPBACK, Server, Tollgate, eventually, free_port

RATELIMIT_MODULE = "github.com/envoyproxy/ratelimit"
RATELIMIT = "v1.4.1-0.20260122083618-3fb702589d36"
# Go verifies the download with these sums, so that the published version is measured.
RATELIMIT_SUMS = {
    "": "h1:nEi1OH2qhE8NtcuBgO/uKpTw/P0nVu4i8mZvL6oD9CQ=",
    "/go.mod": "h1:n61Cm3Lex7sdo0PcQ4UMO12rYb4VT9XZaYC1bA+BUFc=",
}


class Redis(Server):
    """An empty Redis without persistence, on the core of the servers that use it."""

    name = "Redis"

    def __init__(self, scratch):
        self.address = (LOOPBACK, free_port())
        flags = ["--bind", LOOPBACK, "--port", self.address[1], "--save", "", "--appendonly", "no"]
        # A server that is not installed but unpacked from its package finds its libraries there.
        libraries = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
        super().__init__(["redis-server", *flags, "--dir", scratch], scratch / "redis.log", libraries)

    @property
    def url(self):
        return f"{LOOPBACK}:{self.address[1]}"

    def info(self, section):
        """The fields of a section of `INFO`."""
        with socket.create_connection(self.address, 5) as sock, sock.makefile("rb") as answer:
            sock.sendall(f"INFO {section}\r\n".encode())
            length = int(answer.readline()[1:])
            lines = answer.read(length).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def reads(self):
        """How often this server has read from a client: once for each command or pipeline that arrives in one piece."""
        return int(self.info("stats")["total_reads_processed"])

    def keys(self):
        found = self.info("keyspace").get("db0", "keys=0")
        return int(found.split(",")[0].removeprefix("keys="))


class TollgateWithRedis(Tollgate):
    def __init__(self, binary, scratch, redis):
        flags = ["--store-kind", "redis", "--store-redis-urls", f"redis://{redis.url}"]
        super().__init__(binary, scratch, *flags)

    def await_ready(self):
        super().await_ready()

        def ready():
            self.assert_running()
            connection = http.client.HTTPConnection(self.listeners["http"], timeout=5)
            with contextlib.closing(connection):
                connection.request("GET", "/readyz")
                return connection.getresponse().status == 200

        eventually("Tollgate has reached Redis", ready)


class Ratelimit(Server):
    """Envoy's reference server, with its default settings as far as they fit one machine."""

    name = "envoyproxy/ratelimit"
    path = Tollgate.path
    body = staticmethod(Tollgate.body)

    @staticmethod
    def obtain(folder):
        source = RATELIMIT_MODULE, RATELIMIT, "./src/service_cmd"
        return build_go_peer(folder / "peers", "ratelimit", source, RATELIMIT_SUMS)

    def __init__(self, binary, scratch, redis):
        config = scratch / "reference" / "bench" / "config"
        config.mkdir(parents=True)
        # JSON is YAML too.
        rules = {"domain": "benchmark", "descriptors": [Tollgate.RULE]}
        (config / "rules.yaml").write_text(json.dumps(rules))
        grpc, web, debug, metrics = (free_port() for _ in range(4))
        self.address = (LOOPBACK, grpc)
        environment = {
            "RUNTIME_ROOT": config.parent.parent,
            "RUNTIME_SUBDIRECTORY": "bench",
            "RUNTIME_WATCH_ROOT": "false",
            "REDIS_SOCKET_TYPE": "tcp",
            "REDIS_URL": redis.url,
            # Metrics are always on, as in Tollgate.
            "USE_STATSD": "false",
            "USE_PROMETHEUS": "true",
            "PROMETHEUS_ADDR": f"{LOOPBACK}:{metrics}",
            "GRPC_HOST": LOOPBACK,
            "GRPC_PORT": grpc,
            "HOST": LOOPBACK,
            "PORT": web,
            "DEBUG_HOST": LOOPBACK,
            "DEBUG_PORT": debug,
        }
        environment = {name: str(value) for name, value in environment.items()}
        super().__init__([binary], scratch / "ratelimit.log", environment)
