"""What is between replicas: proxies that stall and slow links, and network namespaces that can be torn apart."""

import asyncio
import contextlib
import ctypes
import ctypes.util
import itertools
import os
import pathlib
import shutil
import subprocess
import threading
import time

from processes import LOOPBACK, http_call

CHUNK = 64 * 1024
# How much may be on its way through a proxy in each direction, in chunks.
CHUNKS_MAX = 64
# How soon it is noticed that a link carries again.
GLANCE = 0.005


class Proxies:
    """A proxy in front of each replica. What passes between two of them can be stalled, or made slow.

    A link that is stalled says nothing: nobody is refused, because a refusal would prove a death.
    """

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.replicas = {}
        self.stalled = set()
        self.delays = {}
        self.servers = []
        self.tasks = set()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def stop(self):
        async def close():
            for server in self.servers:
                server.close()
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

        self._run(close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def open(self, name):
        """The address of a new proxy for the replica `name`, which is told to it by `leads_to`."""

        async def start():
            server = await asyncio.start_server(lambda *streams: self._accepted(name, *streams), LOOPBACK, 0)
            self.servers.append(server)
            return f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}"

        return self._run(start())

    def leads_to(self, name, replica):
        self.replicas[name] = replica

    def stall(self, one, other):
        """Nothing passes between two replicas any more."""
        self.stalled.add(frozenset((one, other)))

    def stall_all(self, name):
        for other in self.replicas:
            self.stall(name, other)

    def slow(self, name, seconds):
        """All that passes from or to a replica takes so much longer."""
        self.delays[name] = seconds

    def heal(self):
        self.stalled.clear()
        self.delays.clear()

    def _run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10.0)

    async def _accepted(self, name, reader, writer):
        self.tasks.add(asyncio.current_task())
        try:
            await self._carry(name, reader, writer)
        finally:
            self.tasks.discard(asyncio.current_task())
            writer.close()

    async def _carry(self, name, reader, writer):
        pair = frozenset((name, self._who_dials(writer)))
        if not await self._carries(pair, reader) or name not in self.replicas:
            return
        host, port = self.replicas[name].cluster.rsplit(":", 1)
        try:
            there, back = await asyncio.open_connection(host, int(port))
        except OSError:
            # As nobody is there, nobody is here.
            return
        pumps = [
            asyncio.ensure_future(one) for one in (self._pump(pair, reader, back), self._pump(pair, there, writer))
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            back.close()

    async def _carries(self, pair, reader):
        """Waits while the link is stalled; false where the caller has gone meanwhile."""
        while pair in self.stalled:
            await asyncio.sleep(GLANCE)
            if reader.at_eof():
                return False
        return True

    async def _pump(self, pair, reader, writer):
        waiting = asyncio.Queue(CHUNKS_MAX)

        async def read():
            while chunk := await reader.read(CHUNK):
                await waiting.put((time.monotonic() + self._delay(pair), chunk))
            await waiting.put((0.0, b""))

        reading = asyncio.ensure_future(read())
        try:
            while True:
                due, chunk = await waiting.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                while pair in self.stalled:
                    await asyncio.sleep(GLANCE)
                if not chunk:
                    return
                writer.write(chunk)
                await writer.drain()
        except OSError:
            return
        finally:
            reading.cancel()

    def _delay(self, pair):
        return max(self.delays.get(name, 0.0) for name in pair)

    def _who_dials(self, writer):
        """The name of the replica at the other end: whoever has the socket with that port open."""
        socket = self._inode(writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1])
        for name, replica in self.replicas.items():
            with contextlib.suppress(OSError):
                for file in pathlib.Path(f"/proc/{replica.child.pid}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        if os.readlink(file) == f"socket:[{socket}]":
                            return name
        return None

    @staticmethod
    def _inode(theirs, ours):
        for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, remote, *_, = line.split()[:3]
            if int(local.split(":")[1], 16) == theirs and int(remote.split(":")[1], 16) == ours:
                return line.split()[9]
        return None


class Namespaces:
    """A network namespace for each replica, all on one bridge, until some are moved to another."""

    numbers = itertools.count()

    def __init__(self):
        self.prefix = f"tg{os.getpid()}n{next(self.numbers)}"
        self.count = 0
        self.made = []
        try:
            self.hub = self._make("hub")
            for bridge in ("whole", "apart"):
                self._ip("-n", self.hub, "link", "add", "name", bridge, "type", "bridge")
                self._ip("-n", self.hub, "link", "set", bridge, "up")
        except subprocess.CalledProcessError:
            self.remove()
            raise

    @staticmethod
    def missing():
        """Why there can be none here, or nothing."""
        if not shutil.which("ip"):
            return "the program ip is not installed"
        if os.geteuid() != 0:
            return "it takes root to make them"
        try:
            Namespaces().remove()
        except subprocess.CalledProcessError as error:
            return f"this machine does not let us make them: {error.stderr.strip()}"
        return None

    def add(self):
        """A namespace, and the address that it has on the bridge."""
        self.count += 1
        space, port, address = self._make(str(self.count)), f"port{self.count}", f"10.77.0.{self.count}"
        add = ["link", "add", "name", port, "type", "veth", "peer", "name", "eth0", "netns", space]
        self._ip("-n", self.hub, *add)
        self._ip("-n", self.hub, "link", "set", port, "master", "whole", "up")
        self._ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            self._ip("-n", space, "link", "set", device, "up")
        return Namespace(space, address, port)

    def part(self, *spaces):
        """Nothing passes between these and the others; nobody is told."""
        for space in spaces:
            self._ip("-n", self.hub, "link", "set", space.port, "master", "apart")

    def heal(self, *spaces):
        for space in spaces:
            self._ip("-n", self.hub, "link", "set", space.port, "master", "whole")

    def remove(self):
        for space in reversed(self.made):
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True, timeout=10)

    def _make(self, name):
        space = f"{self.prefix}-{name}"
        self._ip("netns", "add", space)
        self.made.append(space)
        return space

    @staticmethod
    def _ip(*arguments):
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=10)


class Namespace:
    """One of them: where it is, and how it is gone into."""

    def __init__(self, name, address, port):
        self.name, self.address, self.port = name, address, port
        self.within = ("ip", "netns", "exec", name)

    def call(self, *arguments):
        """An HTTP request from inside."""
        with self._inside():
            return http_call(*arguments)

    @contextlib.contextmanager
    def _inside(self):
        """This thread is in the namespace meanwhile, and so are the sockets it makes."""
        libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
        with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{self.name}") as there:
            enter(libc, there)
            try:
                yield
            finally:
                enter(libc, home)


def enter(libc, space):
    any_kind = 0
    if libc.setns(space.fileno(), any_kind) != 0:
        raise OSError(ctypes.get_errno(), "this namespace cannot be entered")
