"""A control plane of go-control-plane that serves rules over xDS, as Envoy Gateway does."""

import json
import shutil
import subprocess

import pytest

from processes import LOOPBACK, Process, eventually

CONTROL_PLANE = shutil.which("control-plane")
NODE = "envoy-ratelimit"

# With `pytest.mark.extended`, because `tests/run --all` builds it.
needs_control_plane = pytest.mark.skipif(
    CONTROL_PLANE is None, reason="control-plane: not installed; tests/run --all builds it if Go is available"
)


def limit(number, unit="YEAR", **more):
    return {"rateLimit": {"unit": unit, "requestsPerUnit": number, **more}}


def rules(domain, *descriptors):
    """A resource with the rules of one domain."""
    return {"name": domain, "domain": domain, "descriptors": list(descriptors)}


class ControlPlane(Process):
    """Serves what `serve` was given last; `address` is known after `await_listening`."""

    address = None

    def __init__(self, directory, listen=f"{LOOPBACK}:0", flags=(), node=NODE):
        self.directory = directory
        self.directory.mkdir(exist_ok=True)
        command = [CONTROL_PLANE, "-listen", listen, "-node", node, *flags]
        super().__init__(command, directory / "control-plane.log", stdin=subprocess.PIPE)

    def await_listening(self):
        self.address = eventually("the control plane listens", lambda: self._first("listening"))["address"]

    def serve(self, version, *resources):
        path = self.directory / f"{version}.json"
        path.write_text(json.dumps(resources))
        sets = len(self.events("set"))
        self.child.stdin.write(f"{version} {path}\n".encode())
        self.child.stdin.flush()
        eventually(f"version {version} is served", lambda: len(self.events("set")) > sets)

    def events(self, kind):
        self.assert_running()
        complete = self.output().rpartition("\n")[0].splitlines()
        events = [json.loads(line) for line in complete if line.startswith("{")]
        return [event for event in events if event["event"] == kind]

    def await_request(self, what, condition):
        """The first request that fulfils the condition."""
        return eventually(what, lambda: next(filter(condition, self.events("request")), None))

    def await_accepted(self, version):
        accepted = {"version": version, "error": ""}
        return self.await_request(f"version {version} is accepted", lambda one: accepted.items() <= one.items())

    def await_refused(self):
        return self.await_request("a refusal", lambda one: one["error"])

    def _first(self, kind):
        return next(iter(self.events(kind)), None)


def metric(tollgate, series):
    """The value of a series, None without it."""
    lines = tollgate.call(tollgate.metrics, "/metrics").body.splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == series), None)
