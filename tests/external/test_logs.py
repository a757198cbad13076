"""Log output: lines caused by peers, and a pipe without a reader."""

import array
import fcntl
import json
import os
import re
import socket
import termios

import pytest

from processes import Tollgate, eventually, http_call

RULES = """
    domain: edge
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 100000}
"""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
PING = b"\0\0\x08\x06\0\0\0\0\0" + b"the last"
PING_ACK = b"\0\0\x08\x06\x01\0\0\0\0"
EVERYTHING = ("--log-level", "debug,h2=debug")
# The capacity of a pipe, less a line that did not fit.
FULL = 60_000


class PipedTollgate(Tollgate):
    """A process whose output goes to a pipe that only `output` reads."""

    def __init__(self, rules, pipe, **options):
        os.mkfifo(pipe)
        self.reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.read = b""
        super().__init__(rules, pipe, **options)

    def output(self):
        try:
            while chunk := os.read(self.reader, 1 << 20):
                self.read += chunk
        except BlockingIOError:
            pass
        return self.read.decode(errors="replace")

    def unread(self):
        """How many bytes are in the pipe."""
        length = array.array("i", [0])
        fcntl.ioctl(self.reader, termios.FIONREAD, length)
        return length[0]

    def stop(self):
        super().stop()
        os.close(self.reader)


@pytest.fixture
def start_piped(cleanup, tmp_path, rule_file):
    def start(**options):
        tollgate = PipedTollgate(rule_file(RULES), tmp_path / "pipe", **options)
        cleanup.callback(tollgate.stop)
        tollgate.await_listening()
        tollgate.await_ready()
        return tollgate

    return start


def flood(address, count):
    """Sends `count` acknowledgements of pings that were never sent, and waits until the server has read them."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(PREFACE + b"".join(PING_ACK + number.to_bytes(8, "big") for number in range(count)) + PING)
        response = b""
        while PING_ACK + b"the last" not in response:
            chunk = connection.recv(65536)
            assert chunk, "the server closed the connection"
            response = (response + chunk)[-100:]


def dropped(tollgate, reason):
    page = http_call(tollgate.metrics, "/metrics").body
    return int(re.search(rf'^tollgate_log_lines_dropped_total{{reason="{reason}"}} (\d+)$', page, re.M)[1])


def fill_pipe(tollgate):
    """Fills the pipe and the queue of the log writer."""
    for _ in range(3):
        flood(tollgate.grpc, 10_000)
    eventually("the pipe is full", lambda: tollgate.unread() >= FULL and dropped(tollgate, "output") > 0)


def test_unsolicited_ping_acks_write_nothing_to_the_log(rule_file, start_tollgate):
    tollgate = start_tollgate(rule_file(RULES))
    before = len(tollgate.output())

    flood(tollgate.grpc, 20_000)

    tollgate.terminate()
    assert tollgate.wait() == 0
    assert len(tollgate.output()) - before < 10_000
    assert all(event["target"].startswith("tollgate") for event in tollgate.events())


def test_library_named_in_the_level_logs_at_a_bounded_rate(rule_file, start_tollgate):
    tollgate = start_tollgate(rule_file(RULES), flags=("--log-level", "info,h2=warn"))

    def warnings():
        return [event for event in tollgate.events() if event["target"].startswith("h2")]

    flood(tollgate.grpc, 20_000)
    assert eventually("warnings", warnings) and dropped(tollgate, "rate") > 10_000

    def dropped_counts():
        flood(tollgate.grpc, 1)
        return [event["left_out"] for event in warnings() if "left_out" in event]

    assert eventually("the next line has the number of dropped lines", dropped_counts)[0] > 10_000


def test_requests_that_cause_errors_are_logged_at_a_bounded_rate(rule_file, start_tollgate, tmp_path):
    token = tmp_path / "token"
    token.write_text("token")
    tollgate = start_tollgate(rule_file(RULES), flags=("--admin-token-file", token))
    token.write_text("")

    def refuse():
        assert http_call(tollgate.admin, "/rules").code == 503

    # Repeated until enough lines fall into one second.
    def beyond_the_rate():
        for _ in range(100):
            refuse()
        return dropped(tollgate, "rate")

    eventually("more lines than the rate", beyond_the_rate)

    def dropped_counts():
        refuse()
        return [event["left_out"] for event in tollgate.events() if "left_out" in event]

    assert eventually("the next line has the number of dropped lines", dropped_counts)[0] > 0


@pytest.mark.timing
def test_full_log_pipe_blocks_neither_replies_nor_shutdown(start_piped):
    tollgate = start_piped(flags=(*EVERYTHING, "--drain-timeout", "5s"))
    fill_pipe(tollgate)

    for path in ("/livez", "/readyz"):
        assert http_call(tollgate.http, path).code == 200
    assert [tollgate.ask("edge", "user=ann").returncode for _ in range(20)] == [0] * 20
    assert http_call(tollgate.admin, "/log", "PUT", body="debug").code == 200

    tollgate.terminate()
    # The drain timeout, and a few seconds for the remaining shutdown.
    assert tollgate.wait(5 + 5) == 0
    assert tollgate.unread() >= FULL


def test_lines_dropped_by_full_pipe_are_reported_later(start_piped):
    tollgate = start_piped(flags=EVERYTHING)
    fill_pipe(tollgate)

    def report():
        return [event["dropped_total"] for event in tollgate.events() if "dropped_total" in event]

    assert eventually("the log reports dropped lines", report)[0] > 0
    tollgate.terminate()
    eventually("the last line is written", lambda: "stopped" in tollgate.output())
    assert tollgate.wait() == 0


def test_failed_snapshot_is_logged_with_system_error(start_piped, tmp_path):
    snapshot = tmp_path / "counters"
    # Files are limited to about 8 KiB, and SIGXFSZ is ignored.
    limited = ["sh", "-c", 'trap "" XFSZ; ulimit -f 16; exec "$@"', "sh"]
    flags = ("--snapshot", snapshot, "--store-snapshot-every", "100ms")
    tollgate = start_piped(prefix=limited, flags=flags)
    for call in range(20):
        descriptors = [{"entries": [{"key": "user", "value": f"{call}-{user}"}]} for user in range(50)]
        body = json.dumps({"domain": "edge", "descriptors": descriptors})
        assert http_call(tollgate.http, "/json", "POST", body=body).code == 200

    def problems():
        return {event["problem"] for event in tollgate.events() if "snapshot" in event["message"]}

    assert eventually("a snapshot has failed", problems) == {"File too large (os error 27)"}
    tollgate.terminate()
    assert tollgate.wait() == 0
    assert not (tmp_path / "counters.new").exists()
