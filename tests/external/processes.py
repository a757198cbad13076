"""Starts the programs under test on the loopback, calls them, and stops exactly those."""

import contextlib
import dataclasses
import functools
import http.client
import http.server
import json
import os
import pathlib
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading

import envoy as envoy_package

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "clients"))

import test_server
from test_server import LISTENERS, TIMEOUT

# The packages below the service.
PACKAGES = ("cluster", "counter", "limiter", "net", "quota", "remote", "rules", "shared_store", "sources", "store", "telemetry", "tools", "wire")
TOLLGATE = pathlib.Path(os.environ.get("TOLLGATE", ROOT / "target" / "debug" / "tollgate"))
# The program and not the launcher of the wheel, so that a signal reaches it.
ENVOY = pathlib.Path(envoy_package.__file__).parent / "_bin" / "envoy"
LOOPBACK = "127.0.0.1"
eventually = functools.partial(test_server.eventually, error=AssertionError)


@dataclasses.dataclass
class Response:
    """An HTTP response. Header names are in lower case."""

    code: int
    headers: dict
    body: str

    def json(self):
        return json.loads(self.body)


def http_call(address, path="/", method="GET", headers=None, body=None, timeout=10.0):
    """One HTTP request over a new connection."""
    host, port = address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        response = connection.getresponse()
        text = response.read().decode()
        return Response(response.status, {name.lower(): value for name, value in response.getheaders()}, text)
    finally:
        connection.close()


def free_port():
    """A port that was free a moment ago, for programs that do not report the port that they bind."""
    with socket.socket() as bound:
        bound.bind((LOOPBACK, 0))
        return bound.getsockname()[1]


class Process:
    """A child process with its output in a file. Signals go to this process only."""

    def __init__(self, command, log, stdin=subprocess.DEVNULL):
        self.log = pathlib.Path(log)
        with self.log.open("wb") as output:
            # An empty environment, so that no variable of the caller's shell affects the test.
            environment = {"PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "/")}
            self.child = subprocess.Popen(
                [str(part) for part in command],
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def output(self):
        return self.log.read_text(errors="replace")

    def assert_running(self):
        assert self.child.poll() is None, f"exited with {self.child.returncode}:\n{self.output()}"

    def terminate(self):
        self.child.send_signal(signal.SIGTERM)

    def wait(self, timeout=TIMEOUT):
        return self.child.wait(timeout)

    def kill(self):
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait(TIMEOUT)

    def stop(self):
        if self.child.poll() is None:
            self.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(5.0)
        self.kill()


def shared_store(flags):
    """The flags for counters in Redis, if TOLLGATE_TEST_REDIS has the address of a server. Each process has its own."""
    url = os.environ.get("TOLLGATE_TEST_REDIS")
    if not url or any(str(flag).startswith(("--cluster", "--snapshot", "--store")) for flag in flags):
        return []
    return ["--store-kind", "redis", "--store-redis-urls", url, "--store-redis-prefix", f"{secrets.token_hex(8)}:"]


class Tollgate(Process):
    """`tollgate serve`; its addresses are known after `await_listening`."""

    grpc = http = admin = metrics = None

    def __init__(
        self, rules, log, grpc=None, admin=None, drain_delay="0s", flags=(), host=LOOPBACK, prefix=(), program=TOLLGATE
    ):
        """`rules` is the path of rule files, or None; `host` is the host of all listeners; `prefix` is a command prefix
        such as `ip netns exec`."""
        super().__init__(
            [*prefix, program, "serve", *(["--rules", rules] if rules else []), "--grpc-listen", grpc or f"{host}:0"]
            + ["--http-listen", f"{host}:0", "--admin-listen", admin or f"{host}:0"]
            + ["--metrics-listen", f"{host}:0", "--log-format", "json"]
            + ["--drain-delay", drain_delay, "--rules-poll-interval", "200ms", *shared_store(flags), *flags],
            log,
        )

    def await_listening(self):
        listeners = eventually("tollgate listens", self._listeners)
        self.grpc, self.http, self.admin, self.metrics = (listeners[name] for name in LISTENERS)

    def await_taking_calls(self):
        """Waits until the gRPC port takes connections: until then a process that starts refuses them."""
        eventually("tollgate takes calls", lambda: any(e.get("message") == "taking calls" for e in self.events()))

    def await_ready(self):
        eventually("tollgate is ready", self.is_ready)

    def is_ready(self):
        self.assert_running()
        return self.call(self.http, "/readyz").code == 200

    def call(self, address, *arguments):
        """An HTTP request to one of the listeners."""
        return http_call(address, *arguments)

    def events(self):
        """The log events so far."""
        return test_server.log_events(self.output())

    def metric(self, name, **labels):
        """The sum of the series with this name and these labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        lines = self.call(self.metrics, "/metrics").body.splitlines()
        found = [line for line in lines if re.match(rf"{name}(\{{|\s)", line)]
        assert found, f"no metric {name}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in found if all(one in line for one in wanted))

    def resident_peak(self):
        """The most that the process has had resident, in bytes."""
        status = pathlib.Path(f"/proc/{self.child.pid}/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])

    def _listeners(self):
        self.assert_running()
        return test_server.listeners(self.events())

    def rules(self):
        return self.call(self.admin, "/rules").json()

    def await_generation_after(self, generation):
        eventually(f"a generation after {generation}", lambda: self.rules()["generation"] > generation)

    def ask(self, *arguments):
        """Runs `tollgate ask` against this instance."""
        return run("ask", "--to", self.grpc, *arguments)

    def ask_with_tls(self, authority, *arguments):
        """The exit code of `tollgate ask` over TLS."""
        return run("ask", "--to", self.grpc, "--tls-ca", authority, *arguments).returncode

    def remaining(self, *entries):
        """Peeks at the remaining hits of the descriptor with these (key, value) pairs."""
        descriptor = {"entries": [{"key": k, "value": v} for k, v in entries], "hitsAddend": "0"}
        request = json.dumps({"domain": "edge", "descriptors": [descriptor]})
        response = self.call(self.http, "/json", "POST", {"content-type": "application/json"}, request)
        assert response.code in (200, 429), response.body
        return response.json()["statuses"][0].get("limitRemaining", 0)

    def await_remaining(self, count, *entries):
        eventually(f"{count} remain for {entries}", lambda: self.remaining(*entries) == count)


def run(*arguments):
    """Runs `tollgate` until it exits."""
    return subprocess.run(
        [str(TOLLGATE), *(str(argument) for argument in arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


class MemoryGroup:
    """A control group with a memory limit, in either version; an error if this user may not create one."""

    def __init__(self, limit):
        v1 = pathlib.Path("/sys/fs/cgroup/memory")
        is_v1 = (v1 / "memory.limit_in_bytes").exists()
        self.path = (v1 if is_v1 else v1.parent) / f"tollgate-test-{secrets.token_hex(8)}"
        self.path.mkdir()
        (self.path / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(limit))

    @property
    def prefix(self):
        """What enters the group before it executes a command."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', self.path / "cgroup.procs"]

    def remove(self):
        """Removes the group, whose programs have ended."""
        self.path.rmdir()


class Envoy(Process):
    """A real Envoy; `bootstrap` is the text of its configuration. It serves after `await_live`."""

    address = admin = None

    def __init__(self, bootstrap, directory):
        config = directory / "envoy.yaml"
        config.write_text(bootstrap)
        self.admin_path = directory / "envoy-admin-address"
        super().__init__(
            [ENVOY, "-c", config, "--admin-address-path", self.admin_path, "--concurrency", "1"]
            + ["--use-dynamic-base-id", "--log-level", "warning", "--file-flush-interval-msec", "50"],
            directory / "envoy.log",
        )

    def await_live(self):
        self.admin = eventually("envoy has an admin address", lambda: self._first_line(self.admin_path))
        eventually("envoy is live", lambda: self._admin("/ready").code == 200)
        self.address = self._listener("edge")

    def get(self, path="/", **headers):
        """A GET request; `x_user="ann"` sends the header `x-user`."""
        return http_call(self.address, path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def codes(self, count, path="/", **headers):
        return [self.get(path, **headers).code for _ in range(count)]

    def config_dump(self):
        return self._admin("/config_dump").body

    def healthy_hosts(self, cluster):
        """The number of healthy hosts of the cluster."""
        return self.statistic(f"cluster.{cluster}.membership_healthy")

    def healthy(self, cluster):
        return self.healthy_hosts(cluster) > 0

    def statistic(self, name):
        """The value of a counter or gauge; 0 before its first use."""
        response = self._admin(f"/stats?format=json&filter=^{name}$").json()
        return next((s["value"] for s in response["stats"] if s.get("name") == name), 0)

    def _first_line(self, path):
        self.assert_running()
        return path.read_text().strip() if path.exists() else None

    def _admin(self, path):
        self.assert_running()
        return http_call(self.admin, path)

    def _listener(self, name):
        listeners = self._admin("/listeners?format=json").json()["listener_statuses"]
        address = next(one["local_address"]["socket_address"] for one in listeners if one["name"] == name)
        return f"{address['address']}:{address['port_value']}"


class Echo:
    """An upstream that records requests and returns the header `x-tokens` as `x-tokens-used`."""

    def __init__(self):
        self.requests = []
        echo = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                echo.requests.append(self.path)
                body = self.path.encode()
                self.send_response(200)
                if "x-tokens" in self.headers:
                    self.send_header("x-tokens-used", self.headers["x-tokens"])
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self.server.daemon_threads = True
        self.address = f"{LOOPBACK}:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
