"""Proxies slow the links of a replica, whichever side has dialed."""

import os
import socket
import socketserver
import threading
import time
import types

import pytest

from processes import LOOPBACK

DELAY = 0.05


class EchoHandler(socketserver.BaseRequestHandler):
    def handle(self):
        while received := self.request.recv(64):
            self.request.sendall(received)


@pytest.fixture
def echo_address():
    with socketserver.ThreadingTCPServer((LOOPBACK, 0), EchoHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"{LOOPBACK}:{server.server_address[1]}"
        server.shutdown()


def replica(pid, cluster=None):
    return types.SimpleNamespace(cluster=cluster, child=types.SimpleNamespace(pid=pid))


def round_trip_seconds(link):
    started = time.monotonic()
    link.sendall(b"ping")
    assert link.recv(64) == b"ping"
    return time.monotonic() - started


def test_link_that_replica_dialed_before_it_was_added_is_slowed(proxies, echo_address):
    host, port = proxies.open("dialed").split(":")
    # The process id of no process.
    proxies.set_target("dialed", replica(0, echo_address))
    with socket.create_connection((host, int(port)), timeout=10.0) as link:
        round_trip_seconds(link)
        proxies.set_target("dialing", replica(os.getpid()))

        proxies.slow("dialing", DELAY)

        assert round_trip_seconds(link) >= 2 * DELAY
