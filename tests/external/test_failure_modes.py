"""tests/FAILURE_MODES.md: all rows are there, and so are the tests that they name."""

import re

import pytest

from processes import PACKAGES, ROOT

PAGE = ROOT / "tests" / "FAILURE_MODES.md"
ROWS = 74


@pytest.fixture(scope="module")
def rows():
    """The cells of each row."""
    lines = [line for line in PAGE.read_text().splitlines() if re.match(r"\| \d", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_failure_modes_table_has_every_row_once(rows):
    assert [int(number) for number, _, _ in rows] == list(range(1, ROWS + 1))


def test_names_in_failure_modes_table_exist(rows):
    code = [ROOT / folder for folder in (*PACKAGES, "tests", "src")]
    sources = [*(ROOT / "tests").rglob("*.py"), *(source for folder in code for source in folder.rglob("*.rs"))]
    text = "\n".join(source.read_text() for source in sources)
    # Tests are functions, or names in a macro call that makes one test of each.
    functions = set(re.findall(r"\b(?:fn|def) (?:test_)?(\w+)|^    (\w+): \"", text, re.MULTILINE))
    functions = {name for pair in functions for name in pair if name}

    for number, _, tests in rows:
        named = re.findall(r"`(\w+)`", tests)
        assert named, f"row {number} names no test"
        assert set(named) <= functions, f"row {number}, not found: {set(named) - functions}"
        for file in re.findall(rf"`((?:external|it|src|{'|'.join(PACKAGES)})/[\w/.]+)(?: --?\w+[^`]*| BINARY)?`", tests):
            assert (ROOT / file).exists() or (ROOT / "tests" / file).exists(), f"row {number}, not found: {file}"


def test_notes_of_failure_modes_table_belong_to_rows(rows):
    noted = {int(number) for number, what, _ in rows if "(note)" in what}
    notes = {int(number) for number in re.findall(r"^- \*\*(\d+)\.\*\*", PAGE.read_text(), re.MULTILINE)}

    assert notes == noted
