"""Starts the server under test on the loopback, and stops exactly this process."""

import asyncio
import contextlib
import http.client
import json
import os
import pathlib
import signal
import subprocess
import time

LOOPBACK = "127.0.0.1"
WAIT = 20.0


async def eventually(what, condition):
    """Waits until `condition()`, or what it returns to be awaited, is true, and returns it."""
    end = time.monotonic() + WAIT
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < end, f"not within {WAIT} s: {what}"
        await asyncio.sleep(0.01)


class Server:
    """`tollgate serve` with these rules."""

    def __init__(self, folder, rules, flags):
        self._folder = folder
        self._rules = folder / "rules.yaml"
        self._rules.write_text(rules)
        self._log = folder / "log.json"
        self._flags = flags
        self._child = None
        self.address = f"{LOOPBACK}:0"

    async def start(self):
        """Starts the server, after a stop at the same address."""
        flags = ["--rules", self._rules, "--log-format", "json", "--drain-delay", "0s", "--grpc-listen", self.address]
        for listener in ("http", "admin", "metrics"):
            flags += [f"--{listener}-listen", f"{LOOPBACK}:0"]
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                [pathlib.Path(os.environ["TOLLGATE"]), "serve", *flags, *self._flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # No variable of the shell affects the server.
                env={"PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "/")},
            )
        listeners = await eventually("tollgate listens", self._listeners)
        self.address = listeners["grpc"]
        await eventually("tollgate is ready", lambda: _is_ready(listeners["http"]))

    def stop(self):
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGCONT)
            self._child.terminate()
        try:
            self._child.wait(WAIT)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait(WAIT)

    @contextlib.contextmanager
    def silent(self):
        """The server keeps its connections, and neither reads nor writes."""
        self._child.send_signal(signal.SIGSTOP)
        try:
            # The signal takes effect later than the call.
            os.waitid(os.P_PID, self._child.pid, os.WSTOPPED)
            yield
        finally:
            self._child.send_signal(signal.SIGCONT)

    def _listeners(self):
        assert self._child.poll() is None, self._log.read_text()
        found = {}
        for line in self._log.read_text().splitlines():
            # The last line may be incomplete.
            with contextlib.suppress(json.JSONDecodeError):
                event = json.loads(line)
                if event.get("message") == "listening":
                    found[event["listener"]] = event["address"]
        return found if {"grpc", "http"} <= found.keys() else None


class Relay:
    """Forwards connections to a server."""

    def __init__(self, target):
        self._target = target
        # Reads of what clients sent.
        self.reads = 0
        self._forwarding = set()
        self.address = None

    @contextlib.asynccontextmanager
    async def running(self):
        listener = await asyncio.start_server(self._forward, LOOPBACK, 0)
        self.address = "{}:{}".format(*listener.sockets[0].getsockname())
        try:
            yield self
        finally:
            listener.close()
            for task in self._forwarding:
                task.cancel()

    async def _forward(self, reader, writer):
        self._forwarding.add(asyncio.current_task())
        server_reader, server_writer = await asyncio.open_connection(*self._target.split(":"))
        with (
            contextlib.closing(writer),
            contextlib.closing(server_writer),
            contextlib.suppress(ConnectionError, asyncio.CancelledError),
        ):
            await asyncio.gather(self._copy(reader, server_writer, 1), self._copy(server_reader, writer, 0))

    async def _copy(self, reader, writer, counted):
        while data := await reader.read(65_536):
            self.reads += counted
            writer.write(data)
            await writer.drain()


def _is_ready(address):
    connection = http.client.HTTPConnection(address, timeout=WAIT)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    finally:
        connection.close()
