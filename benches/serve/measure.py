"""What is measured of a server, whichever it is: CPU, system calls, memory."""

import contextlib
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess

from servers import CLIENT_CORE, Unavailable, eventually, shell

# Flag and length before each message: an answer has at least these bytes, an error has none.
HEAD_BYTES = 5
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# A settings frame without settings, and its acknowledgement.
SETTINGS, ACKNOWLEDGED = b"\0\0\0\x04\0\0\0\0\0", b"\0\0\0\x04\x01\0\0\0\0"


def cpu_ns(pid):
    """The CPU time of all threads of a process, in nanoseconds."""
    total = 0
    for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
        # A thread may have ended meanwhile.
        with contextlib.suppress(FileNotFoundError):
            total += int((thread / "schedstat").read_text().split()[0])
    return total


def resident_bytes(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)[1]) * 1024


def h2load(server, scratch, connections, streams, requests, rate=None):
    """Asks one question again and again; each must be answered. Says how often."""
    body = scratch / "body"
    body.write_bytes(server.body())
    host, port = server.address
    command = ["taskset", "-c", CLIENT_CORE, "h2load", "-c", connections, "-m", streams, "-n", requests]
    if rate:
        command.append(f"--rps={rate / connections}")
    command += ["-d", body, "-H", "content-type: application/grpc", "-H", "te: trailers"]
    said = shell(*command, f"http://{host}:{port}{server.path}", patience=600)
    succeeded = int(re.search(r"(\d+) succeeded", said)[1])
    data = int(re.search(r"\((\d+)\) data", said)[1])
    if succeeded != requests or data < HEAD_BYTES * requests:
        raise Unavailable(f"{server.name} has not answered everything:\n{said}")
    return requests


def bench(server, binary, *flags):
    """`tollgate bench`, and what it measured; everything must be answered."""
    host, port = server.address
    command = ["taskset", "-c", CLIENT_CORE, binary, "bench", "--to", f"{host}:{port}", "--json", *flags]
    said = shell(*command, "benchmark", "tenant=acme-corporation,user=user-{}-of-the-key-space", patience=600)
    found = json.loads(said)
    if found["errors"] or found["over_limit"]:
        raise Unavailable(f"{server.name} has not answered everything: {said}")
    return found


def cpu_us(server, repeat, load):
    """CPU microseconds of the server a request, the least of `repeat` times; `load()` says how many requests it made."""
    found = []
    for _ in range(repeat):
        before = cpu_ns(server.pid)
        requests = load()
        found.append((cpu_ns(server.pid) - before) / requests / 1000)
    return min(found)


def writes(server, scratch, requests, load):
    """System calls that send, a request; `None` where there is no strace, or it may not look at the server."""
    if not shutil.which("strace"):
        return None
    counts = scratch / "strace"
    command = ["strace", "-f", "-c", "-o", counts, "-e", "trace=write,writev,sendto,sendmsg", "-p", server.pid]
    tracer = subprocess.Popen([str(part) for part in command], stderr=subprocess.DEVNULL)
    try:
        tasks = pathlib.Path(f"/proc/{server.pid}/task")

        def traced():
            if tracer.poll() is not None:
                return True
            statuses = [(task / "status").read_text() for task in tasks.iterdir()]
            return all(re.search(r"^TracerPid:\s+[1-9]", status, re.MULTILINE) for status in statuses)

        eventually("strace looks at every thread", traced)
        if tracer.poll() is not None:
            return None
        load(requests)
    finally:
        if tracer.poll() is None:
            tracer.send_signal(signal.SIGINT)
        tracer.wait(30)
    # % time, seconds, usecs/call, calls, and errors where there were any; then the name.
    rows = re.findall(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(?:write|sen)\w*$", counts.read_text(), re.MULTILINE)
    return sum(int(calls) for calls in rows) / requests


def idle_connection_bytes(server, connections):
    """What an open connection takes that has greeted and says nothing more."""
    before = resident_bytes(server.pid)
    with contextlib.ExitStack() as stack:
        for _ in range(connections):
            sock = stack.enter_context(socket.create_connection(server.address, 5))
            sock.sendall(PREFACE + SETTINGS)
            # Its settings, or at least their beginning: the server has made all that a connection needs.
            if not sock.recv(9):
                raise Unavailable(f"{server.name} has closed an idle connection")
            sock.sendall(ACKNOWLEDGED)
        return (resident_bytes(server.pid) - before) / connections
