"""Sends one request to Tollgate; limiter.py is the part for a service."""

import argparse
import math
import sys

from limiter import Decision, Limiter, OnError

ALLOWED, USAGE, DENIED = 0, 1, 2


class Parser(argparse.ArgumentParser):
    def error(self, message):
        # The exit code of argparse, 2, means "denied" here.
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{message}\n")


def whole_number(text: str) -> int:
    number = int(text)
    if not 1 <= number < 2**32:
        raise ValueError
    return number


def entries_of(text: str) -> list[tuple[str, str]]:
    entries = []
    for pair in text.split(","):
        key, separator, value = pair.partition("=")
        if not key or not separator:
            raise argparse.ArgumentTypeError(f"{pair!r} is not KEY=VALUE")
        entries.append((key, value))
    return entries


def line(decision: Decision) -> str:
    verdict = "allowed" if decision.allowed else "denied"
    if decision.no_answer is not None:
        return f"{verdict} no_answer={decision.no_answer.code().name}"
    remaining = "unlimited" if decision.remaining is None else decision.remaining
    # Whole seconds as in the header Retry-After, rounded up so that a retry is not too early.
    return f"{verdict} remaining={remaining} retry_after={math.ceil(decision.retry_after_seconds)}"


def main() -> int:
    parser = Parser(description="Sends one request to Tollgate; exits 0 if allowed, 2 if denied.")
    parser.add_argument("--to", metavar="HOST:PORT", required=True)
    parser.add_argument("--domain", required=True)
    parser.add_argument("--hits", type=whole_number, default=1)
    parser.add_argument("--timeout", type=whole_number, default=250, metavar="MS")
    parser.add_argument("--on-error", type=OnError, default=OnError.ALLOW, metavar="allow|deny")
    parser.add_argument("entries", type=entries_of, metavar="KEY=VALUE[,KEY=VALUE]")
    asked = parser.parse_args()

    limiter = Limiter(asked.to, asked.timeout / 1_000, asked.on_error)
    decision = limiter.ask(asked.domain, asked.entries, asked.hits)
    limiter.close()
    print(line(decision))
    if decision.no_answer is not None:
        print(decision.no_answer.details(), file=sys.stderr)
    return ALLOWED if decision.allowed else DENIED


if __name__ == "__main__":
    sys.exit(main())
