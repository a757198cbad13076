"""Starts a server for the tests of the client packages: `python3 test_server.py RULES [FLAG]...`.

TOLLGATE is the path of the program, RULES the text of a rule file, and flags are those of `tollgate serve`. When the
server is ready, its addresses by listener are printed as a line of JSON. Then each line of the input is a command:
`pause`, `resume` or `kill`. An empty line is printed when it has taken effect. The server ends with the input. Its admin
token is `secret`.
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


def eventually(what, condition):
    end = time.monotonic() + TIMEOUT
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {TIMEOUT} s: {what}")
        time.sleep(0.005)
    return found


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
        text = self.log.read_text()
        if self.child.poll() is not None:
            sys.exit(f"the server exited:\n{text}")
        # The last line may be incomplete.
        events = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n")]
        found = {event["listener"]: event["address"] for event in events if event.get("message") == "listening"}
        return found if len(found) == len(LISTENERS) else None

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
