"""Measures the time of reloads of many rules, and the latency of calls meanwhile; compares programs by turns. Another
time is that of a reload beside a process that keeps the core of the server busy.

    python3 benches/serve/reloads.py PROGRAM...
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True

import measure
import servers
from servers import Unavailable, log_progress

RULES = 100_000


def many_rules(turn):
    limit = {"unit": "hour", "requests_per_unit": 1_000 + turn}
    return [{"key": "user", "value": f"customer-{n:06}", "rate_limit": limit} for n in range(RULES)]


def load(server, binary, flags):
    """Calls the server. Returns what the client found, and the CPU time of the server."""
    before = measure.cpu_s_with_ended_threads(server.pid)
    return measure.bench(server, binary, *flags), measure.cpu_s_with_ended_threads(server.pid) - before


def reload_once(server, rule_file):
    """Activates the rules of a file, and returns the time in seconds until they are active."""
    before = len(server.generations())
    server.replace_rules(rule_file)
    # The rename is the last step of `replace_rules`.
    start = time.time()
    # The log has the time, so that it does not matter when it is read, and the reader takes little of the CPU.
    after = servers.eventually("the rules are active", lambda: server.generations()[before:], interval=0.1)
    return after[0] - start


def measure_busy_core(server, files):
    """The time of a reload while another process takes all of the core that it leaves. The second file is active."""
    busy = subprocess.Popen(["taskset", "-c", servers.SERVER_CORE, sys.executable, "-c", "while True: pass"])
    try:
        return statistics.median(reload_once(server, files[turn % 2]) for turn in range(3))
    finally:
        busy.kill()
        busy.wait()


def measure_reloads(binary, scratch, seconds, has_busy_core=False):
    """The time of repeated reloads of a hundred thousand rules, and the latency of calls meanwhile."""
    log_progress(f"Tollgate: reload of {RULES} rules")
    with servers.Tollgate(binary, scratch) as server:
        before = len(server.generations())
        # Written before the measurement, so that it does not take CPU during it.
        files = [server.rule_file(f"{turn}.yaml", many_rules(turn)) for turn in range(2)]
        server.replace_rules(files[0])
        servers.eventually("the many rules are active", lambda: server.generations()[before:])
        flags = ["--rate", 2_000, "--connections", 4, "--streams", 50, "--duration", f"{seconds}s"]
        quiet, quiet_cpu = load(server, binary, flags)
        times, stop = [], threading.Event()

        def reload():
            # This thread shares a core with the measured client, so it yields to it. The scheduler takes the core of a
            # server that reloads for an idle one.
            os.sched_setaffinity(0, {int(servers.CLIENT_CORE)})
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            for turn in range(1, 1_000):
                if stop.is_set():
                    return
                times.append(reload_once(server, files[turn % 2]))

        reloader = threading.Thread(target=reload)
        reloader.start()
        try:
            busy, busy_cpu = load(server, binary, flags)
        finally:
            stop.set()
            reloader.join()
        if not times:
            raise Unavailable("no reload has ended")
        p99 = [found["latency_us"]["p99"] for found in (busy, quiet)]
        log_progress(f"Tollgate: {len(times)} reloads, p99 {p99[0]:.0f} us, quiet {p99[1]:.0f} us")
        cpu = (busy_cpu - quiet_cpu) / len(times)
        found = {"reload": statistics.median(times), "reload p99": p99[0] / p99[1], "reload CPU": cpu}
        if has_busy_core:
            next_files = files if len(times) % 2 else files[::-1]
            found["reload busy"] = measure_busy_core(server, next_files)
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path, nargs="+")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10, help="duration of each measurement")
    arguments = parser.parse_args()
    measure.require("taskset")
    print("| program | reload (s) | busy core (s) | CPU (s) | p99 meanwhile / quiet |")
    print("|---|---:|---:|---:|---:|")
    turns = []
    for _ in range(arguments.turns):
        for program in arguments.program:
            with tempfile.TemporaryDirectory(prefix="tollgate-reloads-") as scratch:
                found = measure_reloads(
                    program.resolve(), pathlib.Path(scratch), arguments.seconds, has_busy_core=True
                )
            turns.append((program, found))
    for program in arguments.program:
        rows = [found for of, found in turns if of == program]
        names = ("reload", "reload busy", "reload CPU", "reload p99")
        reload, busy, cpu, p99 = (statistics.median(row[name] for row in rows) for name in names)
        print(f"| {program} | {reload:.2f} | {busy:.1f} | {cpu:.2f} | {p99:.1f} |")


if __name__ == "__main__":
    try:
        main()
    except Unavailable as error:
        sys.exit(str(error))
