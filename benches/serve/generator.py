"""The load generator of the open loops, and the programs that they need."""

import json
import pathlib
import subprocess
import tempfile

import deployments
from servers import CLIENT_CORE, BareH2, Tollgate, Unavailable, target

CONNECTIONS = 16
# More calls at a time than a rate leaves open before they time out.
STREAMS = 500
WARMUP = 0.5
# A call without an answer in this time has none.
TIMEOUT = 1


class Generator:
    """`tollgate bench` on the core of the client, in an open loop."""

    name = "the load generator"

    obtain = staticmethod(Tollgate.obtain)

    def __init__(self, program, seconds):
        self.program = program
        self.seconds = seconds
        self.runs = 0

    def load(self, to, rate):
        """The figures of a load at a rate: requests due, answered and sent late, and latencies in microseconds."""
        self.runs += 1
        with tempfile.TemporaryDirectory(prefix="tollgate-calls-") as folder:
            calls = pathlib.Path(folder) / "calls.json"
            calls.write_text(json.dumps(to.requests))
            command = ["taskset", "-c", CLIENT_CORE, self.program, "bench", "--to", ":".join(map(str, to.address))]
            command += ["--json", "--calls", calls, "--connections", CONNECTIONS, "--streams", STREAMS]
            command += ["--rate", rate, "--poisson", "--seed", self.runs, "--timeout", f"{TIMEOUT}s"]
            command += ["--warmup", f"{WARMUP}s", "--duration", f"{self.seconds}s"]
            done = subprocess.run(
                [str(part) for part in command],
                capture_output=True,
                text=True,
                timeout=60 + self.seconds,
                check=False,
            )
        if not done.stdout:
            raise Unavailable(f"tollgate bench: {done.stderr.strip()}")
        found = json.loads(done.stdout)
        return {"due": found["due"], "answered": found["ok"], "late": found["late"]} | found["latency_us"]


def obtain(kinds, programs):
    """The programs of these classes, of which `programs` may have some, and reasons for those that are missing."""
    names = {Tollgate: "tollgate", BareH2: "bare_h2", Generator: "tollgate"}
    built = {kind: programs / name for kind, name in names.items() if programs and (programs / name).exists()}
    found, missing = deployments.obtain(target(), kinds - built.keys())
    return found | built, missing
