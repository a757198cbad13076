"""Starts the programs under test on loopback, talks to them, and ends exactly those."""

import contextlib
import dataclasses
import http.client
import http.server
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import envoy as envoy_package

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOLLGATE = pathlib.Path(os.environ.get("TOLLGATE", ROOT / "target" / "debug" / "tollgate"))
# The program itself and not the wheel's launcher, so that a signal reaches it.
ENVOY = pathlib.Path(envoy_package.__file__).parent / "_bin" / "envoy"
LOOPBACK = "127.0.0.1"
PATIENCE = 20.0
LISTENERS = ("grpc", "http", "admin", "metrics")


def eventually(what, condition, patience=PATIENCE):
    """Waits until `condition()` gives something true, and returns it."""
    deadline = time.monotonic() + patience
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {patience} s: {what}"
        time.sleep(0.01)


@dataclasses.dataclass
class Answer:
    """What an HTTP server answered. Header names are in lower case."""

    code: int
    headers: dict
    body: str

    def json(self):
        return json.loads(self.body)


def http_call(address, path="/", method="GET", headers=None, body=None, timeout=10.0):
    """One HTTP request over a connection of its own."""
    host, port = address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        text = answer.read().decode()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)
    finally:
        connection.close()


class Process:
    """A child process: its output goes to a file, and only it is ever signalled."""

    def __init__(self, command, log):
        self.log = pathlib.Path(log)
        with self.log.open("wb") as output:
            # A fresh environment, so that no setting of the caller's shell changes what is tested.
            environment = {"PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "/")}
            self.child = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def output(self):
        return self.log.read_text(errors="replace")

    def must_run(self):
        assert self.child.poll() is None, f"ended with {self.child.returncode}:\n{self.output()}"

    def terminate(self):
        self.child.send_signal(signal.SIGTERM)

    def wait(self, patience=PATIENCE):
        return self.child.wait(patience)

    def kill(self):
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait(PATIENCE)

    def stop(self):
        if self.child.poll() is None:
            self.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(5.0)
        self.kill()


class Tollgate(Process):
    """`tollgate serve`; its addresses are known once `await_listening` is through."""

    grpc = http = admin = metrics = None

    def __init__(self, rules, log, grpc=None, drain_delay="0s", flags=(), host=LOOPBACK, within=()):
        """`host` is where all it listens on is; `within` are words that go before the command, as those of `ip`."""
        super().__init__(
            [*within, TOLLGATE, "serve", "--rules", rules, "--grpc-listen", grpc or f"{host}:0"]
            + ["--http-listen", f"{host}:0", "--admin-listen", f"{host}:0"]
            + ["--metrics-listen", f"{host}:0", "--log-format", "json"]
            + ["--drain-delay", drain_delay, "--rules-poll-interval", "200ms", *flags],
            log,
        )

    def await_listening(self):
        listeners = eventually("tollgate listens", self._listeners)
        self.grpc, self.http, self.admin, self.metrics = (listeners[name] for name in LISTENERS)

    def await_ready(self):
        eventually("tollgate is ready", self.ready)

    def ready(self):
        self.must_run()
        return self.call(self.http, "/readyz").code == 200

    def call(self, address, *arguments):
        """An HTTP request to one of its addresses."""
        return http_call(address, *arguments)

    def events(self):
        """The log so far; a line that is still being written is left out."""
        events = []
        for line in self.output().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                events.append(json.loads(line))
        return events

    def _listeners(self):
        self.must_run()
        found = {e["listener"]: e["address"] for e in self.events() if e.get("message") == "listening"}
        return found if set(LISTENERS) <= found.keys() else None

    def rules(self):
        return self.call(self.admin, "/rules").json()

    def await_generation_after(self, generation):
        eventually(f"a generation after {generation}", lambda: self.rules()["generation"] > generation)

    def ask(self, *arguments):
        """Runs `tollgate ask` against this instance."""
        return run("ask", "--to", self.grpc, *arguments)

    def remaining(self, *entries):
        """Looks, without charging, at what is left for the descriptor of these (key, value) pairs."""
        descriptor = {"entries": [{"key": k, "value": v} for k, v in entries], "hitsAddend": "0"}
        question = json.dumps({"domain": "edge", "descriptors": [descriptor]})
        answer = self.call(self.http, "/json", "POST", {"content-type": "application/json"}, question)
        assert answer.code in (200, 429), answer.body
        return answer.json()["statuses"][0].get("limitRemaining", 0)

    def await_remaining(self, count, *entries):
        eventually(f"{count} remain for {entries}", lambda: self.remaining(*entries) == count)


def run(*arguments):
    """Runs `tollgate` to its end."""
    return subprocess.run(
        [str(TOLLGATE), *(str(argument) for argument in arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


class Envoy(Process):
    """A real Envoy; `bootstrap` is the text of its configuration. It serves once `await_live` is through."""

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
        """A GET by a client; `x_user="ann"` sends the header `x-user`."""
        return http_call(self.address, path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def codes(self, count, path="/", **headers):
        return [self.get(path, **headers).code for _ in range(count)]

    def healthy_hosts(self, cluster):
        """How many of the cluster's hosts Envoy would send requests to."""
        return self.statistic(f"cluster.{cluster}.membership_healthy")

    def healthy(self, cluster):
        return self.healthy_hosts(cluster) > 0

    def statistic(self, name):
        """The value of a counter or gauge; 0 before it was first used."""
        answer = self._admin(f"/stats?format=json&filter=^{name}$").json()
        return next((s["value"] for s in answer["stats"] if s.get("name") == name), 0)

    def _first_line(self, path):
        self.must_run()
        return path.read_text().strip() if path.exists() else None

    def _admin(self, path):
        self.must_run()
        return http_call(self.admin, path)

    def _listener(self, name):
        listeners = self._admin("/listeners?format=json").json()["listener_statuses"]
        address = next(one["local_address"]["socket_address"] for one in listeners if one["name"] == name)
        return f"{address['address']}:{address['port_value']}"


class Echo:
    """An upstream that counts what reaches it; the header `x-tokens` comes back as `x-tokens-used`."""

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
