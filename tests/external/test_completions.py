"""The command `tollgate completions`."""

import subprocess

import pytest

from processes import TOLLGATE, run

COMPLETE = """
source <("$1" completions bash)
COMP_WORDS=("${@:2}")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_tollgate tollgate "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "completed"),
    [(["che"], ["check"]), (["check", "--js"], ["--json"]), (["serve", "--drain-d"], ["--drain-delay"])],
    ids=["command", "flag", "setting"],
)
def test_bash_completes_commands_flags_and_settings(words, completed):
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE, "bash", str(TOLLGATE), "tollgate", *words],
        capture_output=True,
        text=True,
        timeout=20,
    )

    assert done.stdout.split() == completed, done


def test_unknown_shell_is_refused_with_the_known_ones():
    done = run("completions", "csh")

    assert done.returncode == 64
    assert "zsh" in done.stderr
