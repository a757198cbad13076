"""Runs a program in a pseudo-terminal, and shows its screen as an operator sees it."""

import contextlib
import errno
import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading

import pyte

from processes import TIMEOUT, TOLLGATE, eventually

# The sequences that leave the alternate screen, and that show the cursor.
LEAVE, SHOW_CURSOR = b"\x1b[?1049l", b"\x1b[?25h"


class Terminal:
    """`tollgate` with these arguments in a terminal of this size."""

    def __init__(self, *arguments, columns=80, rows=24, variables=None):
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.output = b""
        self.lock = threading.Lock()
        self.master, self.slave = pty.openpty()
        self.resize(columns, rows)
        self.attributes = termios.tcgetattr(self.slave)
        environment = {name: os.environ.get(name, "/") for name in ("PATH", "HOME")}
        self.child = subprocess.Popen(
            [str(TOLLGATE), *(str(argument) for argument in arguments)],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env=environment | {"TERM": "xterm-256color"} | (variables or {}),
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        while True:
            try:
                data = os.read(self.master, 65536)
            except OSError as error:
                assert error.errno in (errno.EIO, errno.EBADF), error
                return
            with self.lock:
                self.output += data
                self.stream.feed(data)

    def resize(self, columns, rows):
        with self.lock:
            self.screen.resize(rows, columns)
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def lines(self):
        with self.lock:
            return [line.rstrip() for line in self.screen.display]

    def text(self):
        return "\n".join(self.lines())

    def line(self, start):
        """The first line that starts with this text; empty if there is none."""
        return next((line for line in self.lines() if line.startswith(start)), "")

    def colours(self):
        """The colours of all characters on the screen."""
        with self.lock:
            return {self.screen.buffer[y][x].fg for y in range(self.screen.lines) for x in range(self.screen.columns)}

    def await_text(self, text):
        eventually(f"the screen shows {text!r}, and not\n{self.text()}", lambda: text in self.text())

    def send(self, keys):
        os.write(self.master, keys.encode())

    def wait(self):
        return self.child.wait(TIMEOUT)

    def is_restored(self):
        """Whether the terminal is as it was before, with the cursor and the screen of the shell."""
        with self.lock:
            output = self.output
        return (
            termios.tcgetattr(self.slave) == self.attributes
            and output.count(LEAVE) > 0
            and not self.screen.cursor.hidden
        )

    def hang_up(self):
        """Closes the terminal, as a lost connection does. The program has no signal of it."""
        for descriptor in (self.slave, self.master):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def stop(self):
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait(TIMEOUT)
        self.hang_up()
        self.reader.join(TIMEOUT)
