"""The test names in tests/FAILURE_MODES.md."""

import re

from processes import ROOT


def test_names_in_failure_modes_table_exist():
    rows = [line for line in (ROOT / "tests" / "FAILURE_MODES.md").read_text().splitlines() if re.match(r"\| \d", line)]
    sources = [*(ROOT / "tests").rglob("*.rs"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "src").rglob("*.rs")]
    functions = set(re.findall(r"\b(?:fn|def) (?:test_)?(\w+)", "\n".join(source.read_text() for source in sources)))
    assert rows

    for row in rows:
        named = re.findall(r"`(\w+)`", row.split("|")[3])
        assert named, f"no test: {row}"
        assert set(named) <= functions, f"not found: {set(named) - functions}"
