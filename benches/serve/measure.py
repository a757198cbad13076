"""Measurements of any server: CPU, system calls, memory. And what every run of measurements begins and ends with."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys

from servers import CLIENT_CORE, ROOT, Unavailable, eventually, log_progress, shell

# Flag and length before each message: a reply has at least these bytes, an error has none.
PREFIX_BYTES = 5
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# An empty SETTINGS frame, and its acknowledgement.
SETTINGS, SETTINGS_ACK = b"\0\0\0\x04\0\0\0\0\0", b"\0\0\0\x04\x01\0\0\0\0"

PAGE = ROOT / "benches" / "README.md"


def require(*tools):
    """Ends the program unless the machine has these tools and two cores; warns if it is busy."""
    missing = [tool for tool in tools if not shutil.which(tool)]
    if missing:
        sys.exit(f"not installed: {', '.join(missing)} (Debian: util-linux, nghttp2-client, redis-server)")
    if os.cpu_count() < 2:
        sys.exit("a server and its client need a core each, and this machine has one")
    busy = os.getloadavg()[0]
    if busy > 0.5:
        log_progress(f"the machine is busy (load {busy:.1f}): results are noisy")


def write_table(name, table):
    """Puts a table into benches/README.md, between the comments with its name."""
    begin, end = (f"<!-- {name}: {edge} -->" for edge in ("begin", "end"))
    before, rest = PAGE.read_text().split(begin)
    PAGE.write_text(f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}")


def cpu_ns(*pids):
    """The CPU time of all threads of some processes, in nanoseconds."""
    total = 0
    for thread in (thread for pid in pids for thread in pathlib.Path(f"/proc/{pid}/task").iterdir()):
        # A thread may have ended meanwhile.
        with contextlib.suppress(FileNotFoundError):
            total += int((thread / "schedstat").read_text().split()[0])
    return total


def cpu_s_with_ended_threads(pid):
    """The CPU time of all threads that a process has had, in seconds, to 10 ms."""
    # The name of the program, in brackets, may have spaces.
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid, kind="VmRSS"):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"^{kind}:\s+(\d+) kB", status, re.MULTILINE)[1]) * 1024


def h2load(server, scratch, connections, streams, requests, rate=None):
    """Sends the same request `requests` times; every one must be answered. Returns their number."""
    body = scratch / "body"
    body.write_bytes(server.body())
    host, port = server.address
    command = ["taskset", "-c", CLIENT_CORE, "h2load", "-c", connections, "-m", streams, "-n", requests]
    if rate:
        command.append(f"--rps={rate / connections}")
    command += ["-d", body, "-H", "content-type: application/grpc", "-H", "te: trailers"]
    output = shell(*command, f"http://{host}:{port}{server.path}", timeout=600)
    succeeded = int(re.search(r"(\d+) succeeded", output)[1])
    data = int(re.search(r"\((\d+)\) data", output)[1])
    if succeeded != requests or data < PREFIX_BYTES * requests:
        raise Unavailable(f"{server.name} did not answer every request:\n{output}")
    return requests


def bench(server, binary, *flags):
    """Runs `tollgate bench` and returns its measurements; every request must be answered."""
    host, port = server.address
    command = ["taskset", "-c", CLIENT_CORE, binary, "bench", "--to", f"{host}:{port}", "--json", *flags]
    output = shell(*command, "benchmark", "tenant=acme-corporation,user=user-{}-of-the-key-space", timeout=600)
    found = json.loads(output)
    if found["errors"] or found["over_limit"]:
        raise Unavailable(f"{server.name} did not answer every request: {output}")
    return found


def cpu_us(server, repeat, load):
    """CPU microseconds of the server per request, the minimum of `repeat` runs; `load()` returns the number."""
    found = []
    for _ in range(repeat):
        before = cpu_ns(*server.pids)
        requests = load()
        found.append((cpu_ns(*server.pids) - before) / requests / 1000)
    return min(found)


def writes(server, scratch, requests, load):
    """Sending system calls per request; `None` if strace is missing or may not attach to the server."""
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

        eventually("strace is attached to every thread", traced)
        if tracer.poll() is not None:
            return None
        load(requests)
    finally:
        if tracer.poll() is None:
            tracer.send_signal(signal.SIGINT)
        tracer.wait(30)
    # % time, seconds, usecs/call, calls, errors if there are any, and the name.
    rows = re.findall(
        r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(?:write|sen)\w*$", counts.read_text(), re.MULTILINE
    )
    return sum(int(calls) for calls in rows) / requests


def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def call_frames(server):
    """One call as the frames HEADERS and DATA."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":authority": "localhost",
        ":path": server.path,
        "content-type": "application/grpc",
        "te": "trailers",
    }
    # Each field as text, which leaves the tables of the server empty.
    headers = b"".join(
        b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in field) for field in fields.items()
    )
    return frame(1, 0x4, 1, headers) + frame(0, 0x1, 1, server.body())


def await_end_of_stream(sock):
    """Reads frames up to the last one of the stream 1."""
    with sock.makefile("rb") as frames:
        while head := frames.read(9):
            frames.read(int.from_bytes(head[:3]))
            if head[5:] == b"\0\0\0\1" and head[4] & 1:
                return
    raise Unavailable("the server has closed a connection with a call")


def idle_connection_bytes(server, connections, has_call=False):
    """Resident bytes per open connection that has sent its preface, or has had a call, and is idle."""
    before = resident_bytes(server.pid)
    with contextlib.ExitStack() as stack:
        for _ in range(connections):
            sock = stack.enter_context(socket.create_connection(server.address, 5))
            sock.sendall(PREFACE + SETTINGS)
            if has_call:
                sock.sendall(SETTINGS_ACK + call_frames(server))
                await_end_of_stream(sock)
                continue
            # The first bytes of its SETTINGS: the server has set the connection up.
            if not sock.recv(9):
                raise Unavailable(f"{server.name} has closed an idle connection")
            sock.sendall(SETTINGS_ACK)
        return (resident_bytes(server.pid) - before) / connections
