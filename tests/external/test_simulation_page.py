"""The page that `tollgate simulate` writes, in a real browser."""

import json

import pytest

import browser as browsers
from processes import run

pytestmark = pytest.mark.extended

# The height of a plot in units of its own, and the error of one number in it: heights are rounded to two decimals.
PLOT_HEIGHT = 220
MINUTE = 60
USUAL_USERS = ["ann", "bob"]
HOSTILE_USERS = [
    "<script>window.hasRun = true</script>",
    "\"'><img src=x onerror='window.hasRun = true'>",
    "</td></table></body><h1>closed</h1>&lt;b&gt;&amp;",
    "long-" + "x" * 3_000,
    "\u202e\u05e9\u05dc\u05d5\u05dd \u2067\u0645\u0631\u062d\u0628\u0627",
]
HOSTILE_NAME = "<img src=x onerror=alert(1)>\"'&lt;" + "x" * 150 + ".jsonl"


def rules(limit, key="user"):
    """A rule, in JSON so that any key can be written."""
    limits = {"unit": "minute", "requests_per_unit": limit, "algorithm": "fixed_window"}
    queue = {"unit": "minute", "requests_per_unit": 30, "algorithm": "leaky_queue", "burst": 5}
    tree = [{"key": key, "rate_limit": limits}, {"key": "queue", "rate_limit": queue}]
    return json.dumps({"domain": "shop", "on_denied": "charge_none", "descriptors": tree})


def line(second, key, value):
    return json.dumps({"time": second, "descriptors": [{"entries": [{"key": key, "value": value}]}]})


def traffic(users, key="user"):
    """Ten minutes, in each of which the first user asks once, the second one twice, and so on."""
    asked = [
        line(1_767_323_040 + minute * MINUTE + second, key, user)
        for minute in range(10)
        for second, user in enumerate(user for count, user in enumerate(users, 1) for _ in range(count))
    ]
    queued = [line(1_767_323_700, "queue", "q") for _ in range(4)]
    unmatched = [line(1_767_323_701, "other", user) for user in users]
    return "\n".join([*asked, *queued, *unmatched, "<b>no request</b> " + "y" * 300]) + "\n"


@pytest.fixture
def simulated(tmp_path, browser, cleanup):
    """Replays traffic; returns the report and opens its page, which must cause no error and no request."""
    pages = []

    def simulate(*flags, users=USUAL_USERS, key="user", name="traffic.jsonl"):
        first, other, log, html = (tmp_path / each for each in ("rules.yaml", "other.yaml", name, "page.html"))
        first.write_text(rules(1, key))
        other.write_text(rules(2, key))
        log.write_text(traffic(users, key))
        flags = [other if flag == "OTHER" else flag for flag in flags]
        done = run("simulate", first, log, "--json", "--html", html, *flags)
        assert done.returncode == 0, done

        def open_(**options):
            # A page may ask for itself only.
            page = browser.open_url(html.as_uri(), html.as_uri(), **options)
            cleanup.callback(page.context.close)
            pages.append(page)
            return page

        return json.loads(done.stdout), open_

    yield simulate
    assert [page.problems for page in pages if page.problems] == []


def rows(page, index):
    """The texts of the cells of a table, without its header."""
    table = page.locator("table").nth(index)
    return [row.locator("td").all_inner_texts() for row in table.locator("tr").all()][1:]


def percent(share):
    return f"{share * 100:.2f} %"


def users(listed):
    return [[user["descriptor"], str(user["refused"])] for user in listed]


def plotted(plot, name, bins):
    """The numbers that the bars of a plot stand for."""
    most = max(each["passed"] + each["refused"] for each in bins)
    heights = plot.locator(f"rect.{name}").evaluate_all("bars => bars.map(bar => Number(bar.getAttribute('height')))")
    return [round(height / PLOT_HEIGHT * most) for height in heights]


def check_plot(page, name, timeline):
    """The plot has a text alternative, is seen, and has the bars of the report."""
    plot = page.get_by_role("img", name=name, exact=True)
    box = plot.bounding_box()
    assert box["width"] > 200 and box["height"] > 100, box
    bins = timeline["bins"]
    for kind in ("passed", "refused"):
        assert plotted(plot, kind, bins) == [each[kind] for each in bins if each[kind] > 0], kind
    caption = page.locator("figure", has=plot).locator("figcaption").inner_text()
    most = max(each["passed"] + each["refused"] for each in bins)
    assert f"from {timeline['start']}, {timeline['bin_seconds']} s each, at most {most}" in caption


def test_page_has_the_numbers_of_the_report(simulated):
    report, open_page = simulated()
    page = open_page()

    intro = page.locator("p").first.inner_text()
    assert intro.startswith(f"{report['requests']} requests of {report['input']} from {report['from']} to {report['to']}")
    assert f"{report['passed']} passed, {report['refused']} refused ({percent(report['share_refused'])})" in intro
    assert report["refused"] == 10 and report["requests"] == 36
    check_plot(page, "Requests over time", report["timeline"])
    names = ["rule", "asked", "passed", "refused", "share", "users", "users refused", "use", "wait"]
    assert page.locator("table").first.locator("th").all_inner_texts() == names
    waits = [rule["longest_wait_ms"] for rule in report["by_rule"]]
    assert waits == [0, 6_000]
    assert rows(page, 0) == [
        [
            rule["rule"],
            *(str(rule[name]) for name in ("asked", "passed", "refused")),
            percent(rule["share_refused"]),
            *(str(rule[name]) for name in ("users", "users_refused")),
            f"{rule['highest_use'] * 100:.0f} %",
            f"{rule['longest_wait_ms']} ms" if rule["longest_wait_ms"] else "-",
        ]
        for rule in report["by_rule"]
    ]
    assert rows(page, 1) == users(report["refused_most"]) == [["shop user=bob", "10"]]


def test_comparison_shows_both_rules_with_a_plot_each(simulated):
    report, open_page = simulated("--compare", "OTHER")
    page = open_page()

    other = report["comparison"]
    assert other["refused"] == 0 and len(other["users_refused_only_by_first"]) == 1
    check_plot(page, "Requests over time", report["timeline"])
    check_plot(page, "Requests over time, by the other rules", other["timeline"])
    heading = page.get_by_role("heading", name=f"Compared with {other['rules']}", exact=True)
    text = heading.locator("xpath=following-sibling::p[1]").inner_text()
    assert text == f"{other['passed']} passed, {other['refused']} refused ({percent(other['share_refused'])})."
    names = ("refused_by_first", "refused_by_other", "refused_only_by_first", "refused_only_by_other")
    names = (*names, "users_refused_only_by_first", "users_refused_only_by_other")
    assert rows(page, 2) == [[rule["rule"], *(str(rule[name]) for name in names)] for rule in other["by_rule"]]
    assert page.get_by_role("heading", name=f"Refused only by {report['rules']}", exact=True).is_visible()
    assert rows(page, 3) == users(other["users_refused_only_by_first"])


def test_suggested_limits_are_text_to_paste(simulated):
    report, open_page = simulated("--suggest", "100%")
    page = open_page()

    text = page.locator("pre").inner_text()
    assert len(report["suggestions"]) == 2
    for suggestion in report["suggestions"]:
        assert f"# {suggestion['rule']} at {suggestion['at']}: " in text
        assert f"{suggestion['key']}: {suggestion['limit']}\n" in text + "\n"


@pytest.mark.parametrize("width", browsers.WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("flags", [("--compare", "OTHER"), ("--suggest", "100%")], ids=["compare", "suggest"])
def test_page_fits_and_is_accessible_with_long_texts(simulated, flags, scheme, width):
    _, open_page = simulated(*flags, users=HOSTILE_USERS, key="long-" + "k" * 500, name=HOSTILE_NAME)
    page = open_page(scheme=scheme, width=width)

    assert page.get_by_role("img").first.is_visible()
    assert browsers.violations(page) == []
    assert not browsers.is_wider_than_window(page)
    assert browsers.is_dark(page) == (scheme == "dark")


def test_hostile_texts_are_shown_with_hidden_characters_escaped(simulated):
    key = "<script>window.hasRun = true</script>\"'&amp;"
    report, open_page = simulated("--compare", "OTHER", users=HOSTILE_USERS, key=key, name=HOSTILE_NAME)
    page = open_page()

    assert page.evaluate("[document.scripts.length, document.images.length, window.hasRun ?? false]") == [0, 0, False]
    assert page.get_by_role("heading", level=1).all_inner_texts() == ["Simulation"]
    assert report["input"].endswith(HOSTILE_NAME) and report["input"] in page.locator("p").first.text_content()
    assert page.locator("table").first.locator("td").first.text_content() == report["by_rule"][0]["rule"]
    assert key in report["by_rule"][0]["rule"]
    shown = page.locator("table").nth(1).locator("td:first-child").all_text_contents()
    assert shown == [user["descriptor"] for user in report["refused_most"]]
    # Every user but the first asks more often than the limit.
    assert len(shown) == len(HOSTILE_USERS) - 1
    for user in HOSTILE_USERS[1:]:
        hidden = {"\u202e": "\\u{202e}", "\u2067": "\\u{2067}", "=": "\\="}
        written = "".join(hidden.get(character, character) for character in user)
        assert any(written[:100] in text for text in shown), (user, shown)
