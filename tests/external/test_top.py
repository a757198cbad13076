"""`tollgate top` in a terminal."""

import re
import signal

import pytest

from cluster import RULES
from load import Load
from processes import eventually
from rls import descriptor
from terminal import Terminal

NO_ANSWER = 1
DENIED = ("user", "ada, the first")
LOADED = [descriptor(DENIED), *(descriptor(("plenty", f"{n}")) for n in range(20))]
ENTER_SCREEN = b"\x1b[?1049h"


@pytest.fixture
def tollgate(rule_file, start_tollgate):
    return start_tollgate(rule_file(RULES))


@pytest.fixture
def open_top(cleanup):
    """Runs `tollgate top` for the admin listener at this address."""

    def open_(admin, *arguments, **options):
        terminal = Terminal("top", "--to", admin, *arguments, **options)
        cleanup.callback(terminal.stop)
        return terminal

    return open_


@pytest.fixture
def loaded(tollgate, callers, cleanup):
    """A server with calls, some of which are refused."""
    cleanup.enter_context(Load(callers, [tollgate.grpc], LOADED, interval=0.02))
    return tollgate


def figure(line):
    """The value of a line of the overview; 0 while it is unknown."""
    found = re.match(r"[A-Z][a-z ]+ ([\d,.]+)", line)
    return float(found.group(1).replace(",", "")) if found else 0.0


def quit_and_expect_restored(top, key="q"):
    top.send(key)
    assert top.wait() == 0
    eventually("the terminal is restored", top.is_restored)


def test_top_shows_loaded_server_and_quits_with_restored_terminal(loaded, open_top):
    top = open_top(loaded.admin)
    top.await_text("live")
    for name in ("Passed", "Refused", "Counters"):
        eventually(f"{name} has a number", lambda name=name: figure(top.line(name)) > 0)
    eventually("the chart has bars", lambda: any(bar in top.text() for bar in "▁▂▃▄▅▆▇█"))
    top.await_text("generation 1: 10 rules in 1 domain")
    top.await_text(r"edge user=ada\, the first")

    top.send("r")
    top.await_text("Busiest rules")
    top.await_text("edge.plenty")
    top.send("k")
    top.await_text("Most refused keys")
    assert len(top.colours()) > 1
    assert top.lines()[-1].startswith("q quit")
    quit_and_expect_restored(top)


def test_top_says_that_server_is_gone_and_shows_it_again(rule_file, start_tollgate, open_top):
    rules = rule_file(RULES)
    tollgate = start_tollgate(rules)
    top = open_top(tollgate.admin)
    top.await_text("live")

    tollgate.stop()
    top.await_text("disconnected for")
    top.await_text(f"no answer from {tollgate.admin}: ")
    top.await_text("generation 1: 10 rules in 1 domain")

    start_tollgate(rules, admin=tollgate.admin)
    top.await_text("live")
    assert "no answer" not in top.text()
    quit_and_expect_restored(top)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_ends_top_with_restored_terminal(tollgate, open_top, number):
    top = open_top(tollgate.admin)
    top.await_text("live")
    top.child.send_signal(number)
    assert top.wait() == 0
    eventually("the terminal is restored", top.is_restored)


def test_interrupt_key_ends_top_with_restored_terminal(tollgate, open_top):
    top = open_top(tollgate.admin)
    top.await_text("live")
    quit_and_expect_restored(top, key="\x03")


def test_top_ends_when_its_terminal_goes_away(tollgate, open_top):
    top = open_top(tollgate.admin)
    top.await_text("live")
    top.hang_up()
    assert top.wait() == NO_ANSWER


def test_top_fits_into_terminal_of_any_size(tollgate, open_top):
    top = open_top(tollgate.admin, columns=1, rows=1)
    for columns, rows in [(3, 200), (200, 3), (1, 1), (60, 12)]:
        top.resize(columns, rows)
        top.child.send_signal(signal.SIGWINCH)
    top.await_text("live")
    top.await_text("q quit")
    quit_and_expect_restored(top)


def test_no_color_shows_the_same_without_colours(tollgate, open_top):
    top = open_top(tollgate.admin, variables={"NO_COLOR": "1"})
    top.await_text("live")
    top.await_text("active")
    assert top.colours() == {"default"}
    quit_and_expect_restored(top)


@pytest.mark.parametrize("given", [None, "another"])
def test_top_without_right_token_is_an_error_on_the_same_screen(rule_file, start_tollgate, open_top, tmp_path, given):
    token, other = tmp_path / "token", tmp_path / "other"
    token.write_text("token-of-this-test")
    tollgate = start_tollgate(rule_file(RULES), flags=["--admin-token-file", token])
    arguments = []
    if given:
        other.write_text(given)
        arguments = ["--token-file", other]
    top = open_top(tollgate.admin, *arguments)
    assert top.wait() == NO_ANSWER
    top.await_text("requires a token")
    assert ENTER_SCREEN not in top.output

    right = open_top(tollgate.admin, "--token-file", token)
    right.await_text("live")
    quit_and_expect_restored(right)


def test_token_that_is_replaced_is_read_again(rule_file, start_tollgate, open_top, tmp_path):
    token = tmp_path / "token"
    token.write_text("first")
    rules, flags = rule_file(RULES), ["--admin-token-file", token]
    tollgate = start_tollgate(rules, flags=flags)
    top = open_top(tollgate.admin, "--token-file", token)
    top.await_text("live")

    tollgate.stop()
    top.await_text("disconnected for")
    token.write_text("second")
    start_tollgate(rules, admin=tollgate.admin, flags=flags)
    top.await_text("live")
    quit_and_expect_restored(top)
