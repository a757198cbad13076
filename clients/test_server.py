"""Starts a server for the tests of the client packages: `python3 test_server.py RULES [FLAG]...`.

TOLLGATE is the path of the program, RULES the text of a rule file, and flags are those of `tollgate serve`. When the
server is ready, its addresses by listener are printed as a line of JSON. Then each line of the input is a command:
`pause`, `resume` or `kill`. An empty line is printed when it has taken effect. The server ends with the input. Its admin
token is `secret`.

The tests from outside and the benchmarks use its functions. It uses the standard library alone, because the client
packages are also tested in copies.
"""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

LISTENERS = ("grpc", "http", "admin", "metrics")
TIMEOUT = 20.0


def eventually(what, condition, timeout=TIMEOUT, error=TimeoutError, interval=0.01):
    """Waits until `condition()` returns a true value, and returns it. Raises `error` after so many seconds."""
    end = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > end:
            raise error(f"not within {timeout} s: {what}")
        time.sleep(interval)
    return found


def log_events(output):
    """The events in the output of a server, whose last line may be incomplete. Other lines are left out."""
    events = []
    for line in output.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            events.append(json.loads(line))
    return events


def listeners(events):
    """The addresses by listener, of a server that has logged these events; None until it listens to its callers."""
    found = {event["listener"]: event["address"] for event in events if event.get("message") == "listening"}
    # A replica listens to its peers too.
    return found if found.keys() >= set(LISTENERS) else None


class Server:
    def __init__(self, folder, rules, flags):
        path = folder / "rules.yaml"
        path.write_text(rules)
        token = folder / "token"
        token.write_text("secret\n")
        self.log = folder / "log.json"
        # No other variable of the caller affects the server. Flags replace these.
        variables = {"TOLLGATE_RULES__PATH": path, "TOLLGATE_LOG__FORMAT": "json", "TOLLGATE_DRAIN__DELAY": "0s"}
        variables["TOLLGATE_ADMIN__TOKEN_FILE"] = token
        variables |= {f"TOLLGATE_{name.upper()}__LISTEN": "127.0.0.1:0" for name in LISTENERS}
        command = [os.environ["TOLLGATE"], "serve", *flags]
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def await_ready(self):
        """The addresses of a server that is ready."""
        addresses = eventually("the server listens", self.addresses)
        eventually("the server is ready", lambda: is_ready(addresses["http"]))
        return addresses

    def addresses(self):
        if self.child.poll() is not None:
            sys.exit(f"the server exited:\n{self.log.read_text()}")
        return listeners(log_events(self.log.read_text(errors="replace")))

    def pause(self):
        self.child.send_signal(signal.SIGSTOP)
        # The signal takes effect later than the call.
        os.waitid(os.P_PID, self.child.pid, os.WSTOPPED)

    def resume(self):
        self.child.send_signal(signal.SIGCONT)

    def kill(self):
        self.child.kill()
        self.child.wait()


def is_ready(address):
    with contextlib.closing(http.client.HTTPConnection(address, timeout=TIMEOUT)) as connection:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200


def main(rules, *flags):
    if "TOLLGATE" not in os.environ:
        sys.exit("the variable TOLLGATE is not set: set it to the path of the program tollgate")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        server = Server(pathlib.Path(folder), rules, flags)
        stack.callback(server.kill)
        print(json.dumps(server.await_ready()), flush=True)
        commands = {"pause": server.pause, "resume": server.resume, "kill": server.kill}
        for line in sys.stdin:
            commands[line.strip()]()
            print(flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
