"""The load generator of the open loops, and the programs that they need."""

import json
import subprocess

import deployments
from servers import CLIENT_CORE, ROOT, BareH2, Tollgate, Unavailable, log_progress, shell, target

CONNECTIONS = 16
WARMUP = 0.5


class Generator:
    """`open_loop` on the core of the client."""

    name = "the load generator"

    @staticmethod
    def obtain(folder):
        log_progress("building the load generator")
        shell("cargo", "build", "--profile", "dist", "--locked", "--example", "open_loop", cwd=ROOT)
        return folder / "dist" / "examples" / "open_loop"

    def __init__(self, program, seconds):
        self.program = program
        self.seconds = seconds
        self.runs = 0

    def load(self, to, rate):
        self.runs += 1
        load = {"to": ":".join(map(str, to.address)), "connections": CONNECTIONS, "rate": rate}
        load |= {"warmup": WARMUP, "seconds": self.seconds, "seed": self.runs, "requests": to.requests}
        done = subprocess.run(
            ["taskset", "-c", CLIENT_CORE, self.program],
            input=json.dumps(load),
            capture_output=True,
            text=True,
            timeout=60 + self.seconds,
            check=False,
        )
        if done.returncode:
            raise Unavailable(f"open_loop: {done.stderr.strip()}")
        return json.loads(done.stdout)


def obtain(kinds, programs):
    """The programs of these classes, of which `programs` may have some, and reasons for those that are missing."""
    names = {Tollgate: "tollgate", BareH2: "bare_h2", Generator: "open_loop"}
    built = {kind: programs / name for kind, name in names.items() if programs and (programs / name).exists()}
    found, missing = deployments.obtain(target(), kinds - built.keys())
    return found | built, missing
