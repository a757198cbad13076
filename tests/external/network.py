"""The surroundings of processes: proxies that stall and slow links, network namespaces, mounts of their own."""

import asyncio
import contextlib
import ctypes
import ctypes.util
import itertools
import os
import pathlib
import shutil
import socket
import subprocess
import threading
import time

from processes import LOOPBACK, http_call

CHUNK = 64 * 1024
# The bound on chunks in flight through a proxy in each direction.
CHUNKS_MAX = 64
# The polling interval of stalled links.
POLL_INTERVAL = 0.005


class Proxies:
    """A proxy in front of each replica. The link between two replicas can be stalled or slowed.

    A stalled link does not refuse connections, because a refusal would prove that the peer is dead.
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
        """The address of a new proxy for the replica `name`, which `set_target` sets."""

        async def start():
            server = await asyncio.start_server(lambda *streams: self._accepted(name, *streams), LOOPBACK, 0)
            self.servers.append(server)
            return f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}"

        return self._run(start())

    def set_target(self, name, replica):
        self.replicas[name] = replica

    def stall(self, one, other):
        """Stalls the link between two replicas."""
        self.stalled.add(frozenset((one, other)))

    def stall_all(self, name):
        for other in self.replicas:
            self.stall(name, other)

    def slow(self, name, seconds):
        """Delays all traffic from and to a replica."""
        self.delays[name] = seconds

    def heal(self):
        self.stalled.clear()
        self.delays.clear()

    def _run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10.0)

    async def _accepted(self, name, reader, writer):
        self.tasks.add(asyncio.current_task())
        try:
            await self._forward(name, reader, writer)
        finally:
            self.tasks.discard(asyncio.current_task())
            writer.close()

    async def _forward(self, name, reader, writer):
        link = ProxiedLink(self.replicas, name, writer)
        if not await self._await_flow(link, reader) or name not in self.replicas:
            return
        host, port = self.replicas[name].cluster.rsplit(":", 1)
        try:
            there, back = await asyncio.open_connection(host, int(port))
        except OSError:
            # The target refuses, so the proxy closes the connection.
            return
        pumps = [
            asyncio.ensure_future(one) for one in (self._pump(link, reader, back), self._pump(link, there, writer))
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            back.close()

    async def _await_flow(self, link, reader):
        """Waits while the link is stalled; false if the dialing side has closed the connection."""
        while self._is_stalled(link):
            await asyncio.sleep(POLL_INTERVAL)
            if reader.at_eof():
                return False
        return True

    async def _pump(self, link, reader, writer):
        waiting = asyncio.Queue(CHUNKS_MAX)

        async def read():
            while chunk := await reader.read(CHUNK):
                await waiting.put((time.monotonic() + self._delay(link), chunk))
            await waiting.put((0.0, b""))

        reading = asyncio.ensure_future(read())
        try:
            while True:
                due, chunk = await waiting.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                while self._is_stalled(link):
                    await asyncio.sleep(POLL_INTERVAL)
                if not chunk:
                    return
                writer.write(chunk)
                await writer.drain()
        except OSError:
            return
        finally:
            reading.cancel()

    def _is_stalled(self, link):
        return bool(self.stalled) and link.ends() in self.stalled

    def _delay(self, link):
        return max(self.delays.get(name, 0.0) for name in link.ends()) if self.delays else 0.0


class ProxiedLink:
    """A connection that a replica has opened to the proxy of the replica `name`."""

    def __init__(self, replicas, name, writer):
        self.replicas = replicas
        self.name = name
        self.writer = writer
        self.dialing = None

    def ends(self):
        """The names of both replicas."""
        # A replica dials as soon as it runs, perhaps before it is added. An unknown one is looked up again each time.
        self.dialing = self.dialing or self._dialing_replica()
        return frozenset((self.name, self.dialing))

    def _dialing_replica(self):
        """The name of the replica that has the other end of the connection open."""
        theirs, ours = self.writer.get_extra_info("peername"), self.writer.get_extra_info("sockname")
        socket = self._inode(theirs[1], ours[1])
        # A copy, because another thread adds replicas.
        for name, replica in list(self.replicas.items()):
            with contextlib.suppress(OSError):
                for file in pathlib.Path(f"/proc/{replica.child.pid}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        if os.readlink(file) == f"socket:[{socket}]":
                            return name
        return None

    @staticmethod
    def _inode(theirs, ours):
        for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, remote = line.split()[:3]
            if int(local.split(":")[1], 16) == theirs and int(remote.split(":")[1], 16) == ours:
                return line.split()[9]
        return None


class Relay:
    """Passes one connection to a server on, from an address of its own: 127.0.0.`number`."""

    def __init__(self, server, number):
        self.server, self.source = server, f"127.0.0.{number}"
        self.listener = socket.create_server((LOOPBACK, 0))
        self.address = f"{LOOPBACK}:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        host, port = self.server.rsplit(":", 1)
        with self.listener, self.listener.accept()[0] as client:
            with socket.create_connection((host, int(port)), source_address=(self.source, 0)) as server:
                back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
                back.start()
                self._copy(client, server)
                back.join()

    @staticmethod
    def _copy(source, target):
        with contextlib.suppress(OSError):
            while some := source.recv(1 << 16):
                target.sendall(some)
            target.shutdown(socket.SHUT_WR)


class Namespaces:
    """A network namespace for each replica, all on one bridge; a partition moves some to a second bridge."""

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
        """The reason why namespaces cannot be created here, or None."""
        if not shutil.which("ip"):
            return "the program ip is not installed"
        if os.geteuid() != 0:
            return "root is required"
        try:
            Namespaces().remove()
        except subprocess.CalledProcessError as error:
            return f"not permitted on this machine: {error.stderr.strip()}"
        return None

    def add(self):
        """A new namespace with an address on the bridge."""
        self.count += 1
        namespace, port, address = self._make(str(self.count)), f"port{self.count}", f"10.77.0.{self.count}"
        add = ["link", "add", "name", port, "type", "veth", "peer", "name", "eth0", "netns", namespace]
        self._ip("-n", self.hub, *add)
        self._ip("-n", self.hub, "link", "set", port, "master", "whole", "up")
        self._ip("-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            self._ip("-n", namespace, "link", "set", device, "up")
        return Namespace(namespace, address, port)

    def partition(self, *namespaces):
        """Separates these namespaces from the others without an error on either side."""
        for namespace in namespaces:
            self._ip("-n", self.hub, "link", "set", namespace.port, "master", "apart")

    def heal(self, *namespaces):
        for namespace in namespaces:
            self._ip("-n", self.hub, "link", "set", namespace.port, "master", "whole")

    def remove(self):
        for namespace in reversed(self.made):
            subprocess.run(["ip", "netns", "delete", namespace], check=False, capture_output=True, timeout=10)

    def _make(self, name):
        namespace = f"{self.prefix}-{name}"
        self._ip("netns", "add", namespace)
        self.made.append(namespace)
        return namespace

    @staticmethod
    def _ip(*arguments):
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=10)


class Namespace:
    """A network namespace: its name, its address, and the command prefix that enters it."""

    def __init__(self, name, address, port):
        self.name, self.address, self.port = name, address, port
        self.prefix = ("ip", "netns", "exec", name)

    def call(self, *arguments):
        """An HTTP request from inside the namespace."""
        with self._inside():
            return http_call(*arguments)

    @contextlib.contextmanager
    def _inside(self):
        """Moves this thread into the namespace, and so the sockets that it creates."""
        libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
        with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{self.name}") as there:
            enter(libc, there)
            try:
                yield
            finally:
                enter(libc, home)


def enter(libc, namespace):
    any_type = 0
    if libc.setns(namespace.fileno(), any_type) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter the network namespace")


def mounts_missing():
    """The reason why a process cannot have mounts of its own here, or None."""
    if os.geteuid() != 0:
        return "root is required"
    if not shutil.which("unshare"):
        return "the program unshare is not installed"
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, timeout=10, check=False)
    return None if done.returncode == 0 else f"not permitted on this machine: {done.stderr.strip()}"


def with_mount(source, target):
    """Runs a command that sees the file `source` at `target`. The process id stays the same."""
    script = 'mount --bind "$0" "$1" && shift && exec "$@"'
    return ("unshare", "--mount", "sh", "-c", script, str(source), str(target))
