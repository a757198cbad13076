"""Runs the commands of a page, and compares what they print with what stands below them.

The blocks begin with ```console; a line that begins with `$ ` is a command, and the lines below it are its output.
"""

import os
import re
import subprocess

from processes import ROOT, TOLLGATE

# What differs in each run.
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
COUNTER_KEY = re.compile(r"\b[0-9a-f]{32}\b")
DURATION = re.compile(r"\b(\d+(?:\.\d+)?)( ?)(ms|s)\b")
# Between two commands a busy machine may stand still.
SECONDS_APART = 5.0
# Commands of `tollgate` that ask a server, and the listener that they ask.
ASKS = {"ask": "grpc", "explain": "admin", "counters": "admin"}


def sessions(text):
    """The pairs of a command and its output in each block of a page."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)
        assert parts[0] == "", f"output without a command: {block}"
        found.append(list(zip(parts[1::2], parts[2::2], strict=True)))
    return found


def program_for(tollgate, folder):
    """A directory with a `tollgate` that asks this server instead of the one at the usual ports."""
    choices = "\n".join(f"    {name}) set -- --to {getattr(tollgate, at)} \"$@\" ;;" for name, at in ASKS.items())
    program = folder / "bin" / "tollgate"
    program.parent.mkdir()
    lines = ["#!/bin/sh", "command=$1", "shift", 'case "$command" in', choices, "esac"]
    program.write_text("\n".join([*lines, f'exec "{TOLLGATE.resolve()}" "$command" "$@"', ""]))
    program.chmod(0o755)
    return program.parent


def run(command, programs=None, timeout=60.0):
    """Runs a command of a page in a shell, in the root of the repository, and returns what it prints."""
    path = os.pathsep.join(filter(None, [programs and str(programs), os.environ["PATH"]]))
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env=os.environ | {"PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    return done.stdout


def assert_as_documented(command, printed, documented):
    """Instants and the keys of counters may differ, and times by some seconds."""
    assert shape(printed) == shape(documented), f"$ {command}\n{printed}"
    pairs = zip(durations(printed), durations(documented), strict=True)
    assert all(abs(one - other) <= SECONDS_APART for one, other in pairs), f"$ {command}\n{printed}"


def shape(text):
    lines = [line.rstrip() for line in COUNTER_KEY.sub("KEY", INSTANT.sub("INSTANT", text)).strip().splitlines()]
    return DURATION.sub("DURATION", "\n".join(lines))


def durations(text):
    """Each duration in seconds."""
    return [float(n) / (1000 if unit == "ms" else 1) for n, _, unit in DURATION.findall(INSTANT.sub("", text))]
