"""Measures the time of reloads of many rules, and the latency of calls meanwhile; compares programs by turns.

    python3 benches/serve/reloads.py PROGRAM...
"""

import argparse
import os
import pathlib
import statistics
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


def measure_reloads(binary, scratch, seconds):
    """The time of repeated reloads of a hundred thousand rules, and the latency of calls meanwhile."""
    log_progress(f"Tollgate: reload of {RULES} rules")
    with servers.Tollgate(binary, scratch) as server:
        generation = server.generations()
        # Written before the measurement, so that it does not take CPU during it.
        files = [server.rule_file(f"{turn}.yaml", many_rules(turn)) for turn in range(2)]
        server.replace_rules(files[0])
        servers.eventually("the many rules are active", lambda: server.generations() > generation)
        flags = ["--rate", 2_000, "--connections", 4, "--streams", 50, "--duration", f"{seconds}s"]
        quiet = measure.bench(server, binary, *flags)
        times, stop = [], threading.Event()

        def reload():
            # This thread shares a core with the measured client, so it yields to it.
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            for turn in range(1, 1_000):
                if stop.is_set():
                    return
                before = server.generations()
                server.replace_rules(files[turn % 2])
                # The rename is the last step of `replace_rules`.
                start = time.monotonic()
                servers.eventually("the rules are active", lambda: server.generations() > before)
                times.append(time.monotonic() - start)

        reloader = threading.Thread(target=reload)
        reloader.start()
        try:
            busy = measure.bench(server, binary, *flags)
        finally:
            stop.set()
            reloader.join()
        if not times:
            raise Unavailable("no reload has ended")
        p99 = [found["latency_us"]["p99"] for found in (busy, quiet)]
        log_progress(f"Tollgate: {len(times)} reloads, p99 {p99[0]:.0f} us, quiet {p99[1]:.0f} us")
        return {"reload": statistics.median(times), "reload p99": p99[0] / p99[1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path, nargs="+")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10, help="duration of each measurement")
    arguments = parser.parse_args()
    measure.require("taskset")
    print("| program | reload (s) | p99 meanwhile / quiet |\n|---|---:|---:|")
    turns = []
    for _ in range(arguments.turns):
        for program in arguments.program:
            with tempfile.TemporaryDirectory(prefix="tollgate-reloads-") as scratch:
                found = measure_reloads(program.resolve(), pathlib.Path(scratch), arguments.seconds)
            turns.append((program, found))
    for program in arguments.program:
        rows = [found for of, found in turns if of == program]
        reload, p99 = (statistics.median(row[name] for row in rows) for name in ("reload", "reload p99"))
        print(f"| {program} | {reload:.2f} | {p99:.1f} |")


if __name__ == "__main__":
    try:
        main()
    except Unavailable as error:
        sys.exit(str(error))
