"""Starts the server under test on the loopback, and stops exactly this process."""

import asyncio
import contextlib
import json
import pathlib
import subprocess
import sys
import time

TEST_SERVER = pathlib.Path(__file__).parents[2] / "test_server.py"
LOOPBACK = "127.0.0.1"
WAIT = 20.0


# The package is tested alone: it imports nothing from the repository around it.
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
    """`tollgate serve` with these rules, ready."""

    def __init__(self, rules, *flags):
        command = [sys.executable, TEST_SERVER, rules, *flags]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = json.loads(self._process.stdout.readline())["grpc"]

    def kill(self):
        self._command("kill")

    @contextlib.contextmanager
    def silent(self):
        """The server keeps its connections, and neither reads nor writes."""
        self._command("pause")
        try:
            yield
        finally:
            self._command("resume")

    def close(self):
        self._process.communicate()

    def _command(self, name):
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        self._process.stdout.readline()


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
