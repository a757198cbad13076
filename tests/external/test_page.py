"""The operators' page in a real browser."""

import contextlib
import http.client
import http.server
import itertools
import json
import re
import signal
import socket
import threading

import pytest
from playwright.sync_api import expect

import browser as browsers
from bootstraps import deployed_quotas
from cluster import RULES
from colours import VISIONS, Colour
from load import Load
from processes import LOOPBACK, ROOT, TIMEOUT, eventually, http_call
from rls import descriptor, rate_limit_request

pytestmark = pytest.mark.extended

expect.set_options(timeout=browsers.TIMEOUT)

VIEWS = {
    "overview": "Overview",
    "rules": "Rules",
    "keys": "Keys",
    "limits": "Limits",
    "quotas": "Quotas",
    "cluster": "Cluster",
    "try": "Try it",
}
DENIED = ("user", "ada, the first")
LOADED = [descriptor(DENIED), descriptor(("hot", "x")), *(descriptor(("plenty", f"{n}")) for n in range(20))]
# The numbers of keys that the page lists at first, and at most.
LISTED_FIRST, KEYS_MAX = 20, 50
OWNERS = 6
SECRET = "token-of-this-test"


@pytest.fixture
def open_page(browser, cleanup):
    """Opens the page, which must have caused no error and no request elsewhere at the end of the test."""
    pages = []

    def open_(replica, **options):
        page = browser.open(replica.admin, **options)
        cleanup.callback(page.context.close)
        pages.append(page)
        return page

    yield open_
    assert [page.problems for page in pages if page.problems] == []


@pytest.fixture
def loaded_cluster(start_cluster, callers, cleanup):
    """A cluster with calls for all of its replicas, some of which are refused."""
    # Browsers take so much of the machine that owners may answer late, which is no fault of the page.
    cluster = start_cluster(may_degrade=True)
    cleanup.enter_context(Load(callers, cluster.targets, LOADED, interval=0.02))
    return cluster


@pytest.fixture
def exhausted(start_tollgate, callers, rule_file):
    """A single process that has refused a key."""
    tollgate = start_tollgate(rule_file(RULES))
    for _ in range(12):
        callers.call(tollgate.grpc, descriptor(DENIED))
    return tollgate


def figure(text):
    """The first number of a text."""
    return float(re.search(r"[\d,]+(\.\d+)?", text).group().replace(",", ""))


def card(page, title):
    return page.locator("section.card", has=page.get_by_role("heading", name=title, exact=True, level=3))


def chosen_key(page):
    """Asks for the explanation of the most denied key."""
    page.locator("tbody button").first.click()
    answer = page.get_by_role("region", name="Explanation")
    expect(answer.get_by_text("Over limit", exact=True)).to_be_visible()
    return answer


def strip(page):
    return page.get_by_role("region", name="Health")


def colour(page):
    """What the strip says by its colour."""
    return strip(page).get_attribute("class").removeprefix("strip ")


def findings(replica):
    """The ids of the findings that `tollgate doctor` prints."""
    return [finding["id"] for finding in http_call(replica.admin, "/doctor").json()["findings"]]


def first_names(page, title):
    """The names of a list of the overview."""
    return [text.split("\n")[0] for text in card(page, title).locator("li").all_inner_texts()]


# Keeps each colour that the strip has from now on, once.
WATCH_COLOURS = """() => {
    const strip = document.getElementById("health");
    window.colours = [strip.className.replace("strip ", "")];
    new MutationObserver(() => {
        const colour = strip.className.replace("strip ", "");
        if (!colours.includes(colour)) colours.push(colour);
    }).observe(strip, { attributes: true });
}"""


def points(replica):
    """The points with which the stream of samples begins."""
    with contextlib.closing(http.client.HTTPConnection(replica.admin, timeout=TIMEOUT)) as connection:
        connection.request("GET", "/live")
        return json.loads(connection.getresponse().readline())["points"]


def instants(page, chart):
    """The places of the points of a line, from the left; the width of the chart is 600."""
    line = page.get_by_role("img", name=chart).locator("path").first.get_attribute("d")
    return [float(place) for place in re.findall(r"[ML]([\d.]+) ", line or "")]


def test_overview_shows_rates_and_state_of_loaded_cluster(loaded_cluster, open_page):
    page = open_page(loaded_cluster.replicas[0])

    for title in ("Passed", "Refused"):
        rate = card(page, title).locator(".figure")
        eventually(f"{title} has a rate", lambda rate=rate: "/s" in rate.inner_text() and figure(rate.inner_text()) > 0)
    expect(card(page, "Cluster")).to_contain_text("3 of 3 serve")
    expect(card(page, "Rules")).to_contain_text("generation 1: 10 rules in 1 domain")
    latency = card(page, "Time to decide").first
    expect(latency.locator(".figure")).to_contain_text("p99 ≤")
    expect(latency).to_contain_text("p50 ≤")
    begin = len(instants(page, "Decisions each second"))
    eventually("the line grows", lambda: len(instants(page, "Decisions each second")) > begin)


def test_page_opened_later_begins_with_lines_of_the_time_before(exhausted, open_page):
    eventually("the server has points", lambda: len(points(exhausted)) >= 3)
    page = open_page(exhausted)
    # Two points of five seconds, before the first samples of the page.
    page.get_by_role("img", name="Decisions each second").wait_for()
    eventually("the line has a sample", lambda: len(instants(page, "Decisions each second")) >= 3)
    places = instants(page, "Decisions each second")
    assert places[-1] - places[0] > 600 * 5 / 300


def test_rules_show_figures_search_and_problem_at_its_line(loaded_cluster, open_page):
    page = open_page(loaded_cluster.replicas[1], view="rules")

    hot = page.get_by_role("row").filter(has=page.get_by_text("plenty", exact=True))
    decisions = hot.get_by_role("cell").nth(1)
    eventually("the rule has a rate", lambda: figure(decisions.inner_text()) > 0)
    page.get_by_label("Figures of").select_option("all")
    expect(decisions).not_to_contain_text("/s")

    page.get_by_label("Search").fill("bucket")
    expect(page.get_by_text("1 of 10 rules")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(1)

    rules = loaded_cluster.rules.read_text()
    loaded_cluster.rules.write_text(rules.replace("unit: second,", "unit: moment,"))
    problem = page.locator("pre .hit")
    expect(problem).to_contain_text("unit: moment")
    expect(page.get_by_text("1 problem: these contents are not active")).to_be_visible()
    loaded_cluster.rules.write_text(rules.replace("unit: second,", "unit: minute,"))
    expect(problem).to_have_count(0)
    expect(page.get_by_text("Generation 2")).to_be_visible()


def test_keys_show_why_key_is_refused_and_reset_it(loaded_cluster, open_page):
    # Most of the counters have another owner.
    page = open_page(loaded_cluster.replicas[2], view="keys")
    answer = chosen_key(page)
    expect(answer.get_by_role("heading", name=r"user=ada\, the first", exact=True)).to_be_visible()
    expect(answer).to_contain_text("10 per year")

    reset = answer.get_by_role("button", name="Reset this counter")
    reset.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()
    assert loaded_cluster.replicas[0].remaining(DENIED) == 0

    reset.click()
    dialog.get_by_role("button", name="Reset").click()
    expect(answer.get_by_text("The counter was reset: 0 were left")).to_be_visible()
    events = [event for one in loaded_cluster.replicas for event in one.events()]
    assert [event["descriptor"] for event in events if event.get("message") == "reset a counter"] == [
        r"user=ada\, the first"
    ]


def test_quotas_show_the_share_of_each_client(start_tollgate, start_envoy, open_page):
    tollgate = start_tollgate(ROOT / "deploy" / "rules" / "quotas.yaml", flags=["--rlqs-enabled", "true"])
    envoys = [start_envoy(deployed_quotas(tollgate.grpc)) for _ in range(2)]
    page = open_page(tollgate, view="quotas")
    expect(page.get_by_text("No client has reported requests")).to_be_visible()
    for envoy in envoys:
        envoy.codes(20, x_tenant="acme")

    page.get_by_role("button", name="quotas tenant=acme").click()
    shares = page.get_by_role("group", name="Shares of the limit")
    expect(shares.locator("tbody tr")).to_have_count(2)
    for name in shares.locator("tbody th").all_inner_texts():
        assert re.fullmatch(r"127\.0\.0\.1:\d+", name)
    assert browsers.violations(page) == []
    assert browsers.broken_parts(page) == []


def test_cluster_is_shown_by_every_replica_and_follows_its_changes(loaded_cluster, open_page):
    cluster = loaded_cluster
    pages = [open_page(replica, view="cluster") for replica in cluster.replicas]
    for page in pages:
        expect(page.locator("tbody tr")).to_have_count(3)
        expect(page.get_by_role("img", name="Slots by owner")).to_be_visible()
        # Each name begins with the address.
        texts = page.locator("tbody th").all_inner_texts()
        names = [re.match(r"127\.0\.0\.1:\d+", text)[0] for text in texts]
        assert sorted(names) == sorted(replica.advertised for replica in cluster.replicas)
        slots = page.locator("tbody tr td:nth-child(3)")
        assert sum(int(figure(text)) for text in slots.all_inner_texts()) == 4096
        sent = page.locator("dd", has=page.get_by_text("of decisions")).first
        eventually("checks are sent to their owner", lambda sent=sent: figure(sent.inner_text()) > 0)

    cluster.remove(cluster.replicas[-1])
    expect(pages[0].get_by_text("1 left in order")).to_be_visible()
    expect(pages[0].locator("tbody tr")).to_have_count(2)
    expect(pages[0].locator("tbody tr", has_text="serving")).to_have_count(2)
    assert "member_died" not in findings(cluster.replicas[0])
    # The page of the replica that has gone cannot be told more.
    expect(pages[2].locator("#state")).to_contain_text("trying again")
    expect(strip(pages[2])).to_contain_text("has not answered since")
    assert colour(pages[2]) == "lost"
    pages[2].problems.clear()


def test_death_of_member_is_red_and_a_finding(loaded_cluster, open_page):
    page = open_page(loaded_cluster.replicas[0], view="cluster")
    expect(page.locator("tbody tr")).to_have_count(3)
    loaded_cluster.kill(loaded_cluster.replicas[-1])
    expect(page.get_by_text(re.compile(r"^1 died \d+\ss ago$"))).to_have_class("bad")
    expect(page.locator("tbody tr").last.locator("td[data-label=State] > *")).to_have_text("died")
    expect(page.locator("tbody tr").last.locator("td[data-label=State] > *")).to_have_class("bad")
    expect(strip(page)).to_contain_text("member_died")
    assert "member_died" in findings(loaded_cluster.replicas[0])
    assert browsers.violations(page) == []
    page.get_by_role("link", name="Overview", exact=True).click()
    expect(card(page, "Cluster")).to_contain_text("2 of 3 serve")
    expect(card(page, "Cluster")).to_contain_text("1 died")


def test_strip_shows_findings_of_the_doctor_with_repair_and_link(exhausted, rule_file, callers, open_page):
    page = open_page(exhausted)
    expect(strip(page)).to_contain_text("All is well")
    assert colour(page) == "good"

    callers.call_all([(exhausted.grpc, rate_limit_request(descriptor(("user", "ada")), domain="egde"))])
    finding = strip(page).get_by_role("listitem").filter(has_text="unknown_domain")
    expect(finding).to_contain_text("Repair: set `domain` of the caller")
    expect(finding.get_by_role("link", name="Documentation")).to_have_attribute("href", re.compile(r"/docs/admin\.md#"))
    expect(strip(page)).to_contain_text("1 warning")
    assert colour(page) == "warn"

    rule_file(RULES.replace("unit: second,", "unit: moment,"))
    finding = strip(page).get_by_role("listitem").filter(has_text="rule_problems")
    expect(finding).to_contain_text("Repair: ")
    expect(strip(page)).to_contain_text("1 error, 1 warning")
    assert colour(page) == "bad"
    shown = strip(page).locator("li strong").all_inner_texts()
    assert sorted(shown) == sorted(findings(exhausted))
    assert browsers.violations(page) == []
    finding.get_by_role("link", name="See Rules").click()
    expect(page.get_by_role("heading", level=2)).to_have_text("Rules")


def test_strip_is_grey_while_the_server_does_not_answer(exhausted, open_page):
    page = open_page(exhausted)
    expect(strip(page)).to_contain_text("All is well")
    exhausted.child.send_signal(signal.SIGSTOP)
    expect(strip(page)).to_contain_text(re.compile(r"has not answered since \d\d:\d\d:\d\d, for \d+\ss"))
    assert colour(page) == "lost"
    assert browsers.violations(page) == []
    exhausted.child.send_signal(signal.SIGCONT)
    expect(strip(page)).to_contain_text("All is well")


def test_draining_is_shown_beside_host_version_and_rules(start_tollgate, rule_file, open_page):
    tollgate = start_tollgate(rule_file(RULES), drain_delay="15s")
    page = open_page(tollgate)
    identity = page.locator("#identity")
    digest = http_call(tollgate.admin, "/rules").json()["hash"]
    expect(identity).to_contain_text(re.compile(rf"^host {socket.gethostname()}, version [\d.]+, up \d+\s\w+, rules {digest}$"))
    expect(strip(page)).to_contain_text("All is well")
    tollgate.terminate()
    expect(strip(page)).to_contain_text("Not ready: draining")
    assert colour(page) == "warn"


def test_replica_that_leaves_in_order_is_amber_and_others_stay_green(start_cluster, open_page):
    cluster = start_cluster(drain_delay="8s", flags=["--drain-timeout", "15s"])
    leaving, other = cluster.replicas[-1], cluster.replicas[0]
    pages = [open_page(replica, view="cluster") for replica in (leaving, other)]
    for page in pages:
        expect(strip(page)).to_contain_text("All is well")
        page.evaluate(WATCH_COLOURS)
    leaving.terminate()
    expect(strip(pages[0])).to_contain_text("Not ready: draining")
    state = pages[1].locator("tbody tr", has_text=leaving.advertised).locator("td[data-label=State] > *")
    expect(state).to_have_text("draining")
    expect(state).to_have_class("warn")
    assert findings(leaving) == findings(other) == []
    assert leaving.wait() == 0
    cluster.replicas.remove(leaving)
    expect(pages[1].get_by_text("1 left in order")).to_be_visible()
    expect(strip(pages[0])).to_contain_text("has not answered since")
    assert [page.evaluate("colours") for page in pages] == [["good", "warn", "lost"], ["good"]]
    pages[0].problems.clear()


def test_overview_lists_what_is_refused_now_and_explains_it(start_tollgate, rule_file, callers, cleanup, open_page):
    tollgate = start_tollgate(rule_file(RULES))
    callers.call_all([(tollgate.grpc, rate_limit_request(descriptor(DENIED)))] * 1000)
    page = open_page(tollgate)
    expect(card(page, "Most refused keys")).to_contain_text("None in the last 10 seconds")
    cleanup.enter_context(Load(callers, [tollgate.grpc], [descriptor(("bucket", "now"))], concurrency=1, interval=0.1))
    eventually("the key is listed", lambda: first_names(page, "Most refused keys") == ["edge bucket=now"])
    eventually("its rule is listed", lambda: first_names(page, "Rules that refuse most") == ["edge.bucket"])

    page.get_by_role("button", name="edge bucket=now").click()
    expect(page.get_by_role("heading", level=2)).to_have_text("Keys")
    answer = page.get_by_role("region", name="Explanation")
    now = answer.locator(".figure").first
    expect(now).to_have_text(re.compile(r"^Refused [\d.]+ a second$"))
    eventually("it has a rate", lambda: figure(now.inner_text()) > 0)
    expect(now).to_have_class("figure bad")
    expect(answer.get_by_text("Over limit", exact=True)).to_be_visible()

    page.mouse.move(0, 0)
    keys = page.locator("tbody button")
    expect(keys).to_have_text(["edge bucket=now", r"edge user=ada\, the first"])
    page.get_by_label("Order by").select_option("since the start")
    expect(keys).to_have_text([r"edge user=ada\, the first", "edge bucket=now"])
    expect(page.locator("tbody tr").first).to_contain_text("0 /s".replace(" ", "\u00a0"))


@pytest.mark.parametrize("width", browsers.WIDTHS)
def test_limits_of_keys_are_set_listed_and_cleared_with_the_token(
    start_tollgate, rule_file, tmp_path, open_page, width
):
    file = tmp_path / "token"
    file.write_text(SECRET)
    limit = "requests_per_unit: 10, algorithm: fixed_window"
    own = RULES.replace(limit, f"{limit}, own: {{requests_per_unit: {{max: 50}}}}", 1)
    tollgate = start_tollgate(rule_file(own), flags=["--admin-token-file", file])
    page = open_page(tollgate, view="limits", wait=False, width=width)
    page.get_by_label("Token").fill(SECRET)
    page.get_by_role("button", name="Use this token").click()
    expect(page.get_by_text("No key has a limit of its own here.")).to_be_visible()

    def set_(key, requests):
        page.get_by_label("Key", exact=True).fill(key)
        page.get_by_label("Requests per unit").fill(requests)
        page.get_by_label("Note").fill("plan gold")
        page.get_by_role("button", name="Set", exact=True).click()

    set_(r"user=ada\, the first", "51")
    expect(page.get_by_role("status").filter(has_text="50")).to_be_visible()
    for key, requests in ((r"user=ada\, the first", "40"), ("user=ben", "3")):
        set_(key, requests)
        expect(page.get_by_role("row").filter(has_text=key)).to_contain_text(f"requests_per_unit {requests}")
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.locator("tbody tr").first).to_contain_text("by the operators’ page, plan gold")
    assert tollgate.remaining(DENIED) == 40
    assert browsers.violations(page) == []
    assert browsers.broken_parts(page) == []
    assert not browsers.is_wider_than_window(page)

    page.get_by_label("First entries").fill("user=ben")
    page.get_by_role("button", name="List").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Clear user=ben").click()
    expect(page.get_by_text("user=ben has the numbers of its rule again.")).to_be_visible()
    assert tollgate.remaining(("user", "ben")) == 10
    # The browser reports the answers 401 of the time without the token.
    page.problems.clear()


def test_axes_of_young_process_end_near_its_data(exhausted, open_page):
    page = open_page(exhausted)
    eventually("the line has a sample", lambda: len(instants(page, "Decisions each second")) >= 3)
    assert instants(page, "Decisions each second")[0] < 600 * 0.75
    expect(page.locator(".times").first).to_contain_text(re.compile("^−[1-6]?[05]\\ss"))


def test_columns_without_content_are_hidden(exhausted, rule_file, open_page):
    page = open_page(exhausted, view="rules")
    expect(page.get_by_role("columnheader", name="Decisions")).to_be_visible()
    shadow = page.get_by_role("columnheader", name="Shadow: would refuse")
    expect(shadow).to_have_count(0)
    rule_file(RULES.replace("- key: member\n", "- key: member\n        shadow_mode: true\n"))
    expect(shadow).to_be_visible()
    expect(page.get_by_role("columnheader", name="Candidate: would refuse")).to_have_count(0)


@pytest.mark.parametrize("width", [browsers.PHONE, 400, 490, 560])
def test_phone_has_tabs_in_one_line_and_tiles_in_two_columns(exhausted, open_page, width):
    page = open_page(exhausted, width=width)
    tabs = [link.bounding_box() for link in page.get_by_role("navigation").get_by_role("link").all()]
    assert len(tabs) == len(VIEWS) and len({tab["y"] for tab in tabs}) == 1

    def are_side_by_side():
        # A finding that is shown between the two moves what is below it.
        passed, refused = (card(page, title).bounding_box() for title in ("Passed", "Refused"))
        return passed["y"] == refused["y"] and passed["x"] < refused["x"]

    eventually("the tiles are side by side", are_side_by_side)
    assert not browsers.is_wider_than_window(page)


@pytest.mark.parametrize("width", [1000, 1440])
def test_header_takes_two_lines(loaded_cluster, open_page, width):
    page = open_page(loaded_cluster.replicas[0], width=width)
    expect(page.locator("#identity")).to_contain_text("rules ")
    parts = page.locator("header h1, nav a, #identity span, #state, #clock")
    # All at once, because the page may replace them meanwhile.
    boxes = parts.evaluate_all("parts => parts.map((part) => part.getBoundingClientRect().toJSON())")
    lines = []
    for top, bottom in sorted((box["top"], box["bottom"]) for box in boxes):
        if lines and top < lines[-1]:
            lines[-1] = max(lines[-1], bottom)
        else:
            lines.append(bottom)
    assert len(lines) == 2


def test_form_explains_request_and_charges_nothing(exhausted, open_page):
    page = open_page(exhausted, view="try")
    page.get_by_label("Descriptors").fill("bucket=b\nuser=ada\\, the first")
    page.get_by_label("Hits of each descriptor").fill("3")
    page.get_by_role("button", name="Explain").click()

    answer = page.get_by_role("region", name="Answer")
    expect(answer.get_by_text("Over limit", exact=True)).to_be_visible()
    expect(answer).to_contain_text("refused by edge.user")
    expect(answer).to_contain_text("10 of 10 left of an unused counter, 10 after")
    expect(answer).to_be_focused()
    assert exhausted.remaining(("bucket", "b")) == 10

    page.get_by_label("Descriptors").fill("unknown=u")
    page.get_by_role("button", name="Explain").click()
    expect(answer.get_by_text("No limit", exact=True)).to_have_class("figure warn")

    page.get_by_label("Descriptors").fill("no separator")
    page.get_by_role("button", name="Explain").click()
    expect(answer).to_contain_text("`no separator` has no `=`")
    # The browser reports the answer 400 too.
    page.problems.clear()


@pytest.mark.parametrize("width", browsers.WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_fits_and_is_accessible(loaded_cluster, open_page, scheme, width):
    replica = loaded_cluster.replicas[0]
    page = open_page(replica, scheme=scheme, width=width)
    for view, title in VIEWS.items():
        page.get_by_role("link", name=title, exact=True).click()
        expect(page.get_by_role("heading", level=2)).to_have_text(title)
        if view == "keys":
            chosen_key(page)
        if view == "rules":
            expect(page.locator("tbody tr")).to_have_count(10)
        if view == "try":
            page.get_by_label("Descriptors").fill("user=ada")
            page.get_by_role("button", name="Explain").click()
            expect(page.get_by_text("Passes", exact=True)).to_be_visible()
        assert browsers.violations(page) == [], view
        assert browsers.broken_parts(page) == [], view
        assert not browsers.is_wider_than_window(page), view
        assert browsers.is_dark(page) == (scheme == "dark"), view
        if page.get_by_role("dialog").is_visible():
            page.get_by_role("button", name="Close").click()


def test_every_view_fits_into_320_pixels(exhausted, open_page):
    page = open_page(exhausted, width=320)
    for title in VIEWS.values():
        page.get_by_role("link", name=title, exact=True).click()
        expect(page.get_by_role("heading", level=2)).to_have_text(title)
        assert not browsers.is_wider_than_window(page), title


def test_phone_shows_decisions_refusals_and_states_without_scrolling_sideways(loaded_cluster, open_page):
    page = open_page(loaded_cluster.replicas[0], view="rules", width=browsers.PHONE)
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(10)
    for row, column in itertools.product(rows.all(), ("Decisions", "Refused")):
        cell = row.locator(f"td[data-label='{column}'] > *")
        eventually("the cell has a figure", lambda cell=cell: "/s" in cell.inner_text())
        eventually(f"{column} is in sight", lambda cell=cell: browsers.is_in_sight(cell))

    page.get_by_role("link", name="Cluster", exact=True).click()
    states = page.locator("td[data-label=State] > *")
    expect(states).to_have_text(["serving"] * 3)
    eventually("all states are in sight", lambda: all(map(browsers.is_in_sight, states.all())))


def test_explanation_is_visible_after_tap_on_first_of_fifty_keys(exhausted, callers, open_page):
    for number in range(KEYS_MAX):
        for hits in (10, 1):
            callers.call(exhausted.grpc, descriptor(("user", f"of a phone {number}"), hits=hits))
    page = open_page(exhausted, view="keys", width=browsers.PHONE)
    keys = page.locator("tbody button")
    expect(keys).to_have_count(LISTED_FIRST)
    page.get_by_role("button", name=re.compile("^Show all 5[01] keys$")).tap()
    eventually("all keys are listed", lambda: keys.count() >= KEYS_MAX)
    page.evaluate("document.activeElement.blur()")
    keys.first.tap()
    answer = page.get_by_role("region", name="Explanation")
    expect(answer.get_by_text("Over limit", exact=True)).to_be_in_viewport()
    expect(answer.get_by_text("10 per year, algorithm: fixed_window", exact=True)).to_be_in_viewport()
    page.get_by_role("button", name="Close").tap()
    expect(answer).to_be_hidden()
    expect(keys.first).to_be_in_viewport()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_of_owners_differ_for_all_readers_and_judge_nothing(exhausted, open_page, scheme):
    page = open_page(exhausted, scheme=scheme)
    value = "(name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()"
    card, *owners = (
        Colour.of(page.evaluate(value, name)) for name in ("--card", *(f"--m{n}" for n in range(OWNERS)))
    )
    for owner in owners:
        assert owner.contrast(card) >= 3
        assert owner.is_cold_or_grey()
    for (one, other), vision in itertools.product(itertools.combinations(owners, 2), VISIONS):
        assert one.distance(other, vision) > 0.1, vision


def test_page_works_by_keyboard_alone(exhausted, open_page):
    page = open_page(exhausted)
    page.locator("body").press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    for _ in range(3):
        page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Keys", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Keys")).to_be_focused()

    key = page.locator("tbody button").first
    key.wait_for()
    for _ in range(3):
        page.keyboard.press("Tab")
    expect(key).to_be_focused()
    page.keyboard.press("Enter")
    reset = page.get_by_role("button", name="Reset this counter")
    reset.wait_for()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(reset).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("dialog").get_by_role("button", name="Reset")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_text("The counter was reset: 0 were left, 10 are now.")).to_be_visible()


def test_data_needs_token_which_stays_in_memory(start_tollgate, rule_file, tmp_path, open_page):
    file = tmp_path / "token"
    file.write_text(SECRET)
    tollgate = start_tollgate(rule_file(RULES), flags=["--admin-token-file", file])
    page = open_page(tollgate, wait=False)
    asked = []
    page.on("request", lambda request: asked.append(request.url))

    for token in ("wrong", SECRET):
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Use this token").click()
        if token != SECRET:
            expect(page.get_by_role("alert")).to_contain_text("not the token")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.get_by_role("link", name="Try it").click()
    page.get_by_label("Descriptors").fill("user=ada")
    page.get_by_role("button", name="Explain").click()
    expect(page.get_by_text("Passes", exact=True)).to_be_visible()

    assert [url for url in asked if SECRET in url] == []
    assert page.evaluate("[document.cookie, localStorage.length, sessionStorage.length]") == ["", 0, 0]
    assert SECRET not in page.content()
    page.reload()
    expect(page.get_by_label("Token")).to_be_visible()
    # The browser reports each answer 401.
    page.problems.clear()


@contextlib.contextmanager
def other_site():
    """A page of another origin on this machine."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>other</title>")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer((LOOPBACK, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(TIMEOUT)


ATTACK = """async ([admin, counter]) => {
    const all = [];
    for (const method of ["DELETE", "GET", "POST"]) {
        const mode = method === "DELETE" ? "cors" : "no-cors";
        all.push(await fetch(admin + counter, {method, mode}).then((answer) => answer.type, () => "refused"));
    }
    return all;
}"""

FRAME = "(address) => void document.body.append(Object.assign(document.createElement('iframe'), {src: address}))"


def test_page_of_another_origin_reads_and_changes_nothing(exhausted, browser):
    counter = r"/counters?domain=edge&key=user=ada\, the first"
    with other_site() as site, contextlib.closing(browser.chromium.new_context()) as context:
        page = context.new_page()
        page.goto(site)
        assert page.evaluate(ATTACK, [f"http://{exhausted.admin}", counter]) == ["refused", "opaque", "opaque"]
        # The page itself in a frame, where a click could be stolen.
        with page.expect_console_message(lambda message: "frame-ancestors" in message.text):
            page.evaluate(FRAME, f"http://{exhausted.admin}/")
    assert exhausted.remaining(DENIED) == 0


def test_name_that_leads_to_this_machine_is_refused(exhausted, browser):
    port = exhausted.admin.rsplit(":", 1)[1]
    with contextlib.closing(browser.chromium.new_context()) as context:
        page = context.new_page()
        page.goto(f"http://{browsers.REBOUND}:{port}/")
        expect(page.locator("#state")).to_contain_text("Host header must be localhost")
        codes = page.evaluate(
            "async (path) => (await fetch(path, {method: 'DELETE'})).status",
            r"/counters?domain=edge&key=user=ada\, the first",
        )
        assert codes == 403
    assert exhausted.remaining(DENIED) == 0


def test_policy_blocks_inline_scripts_and_requests_elsewhere(exhausted, open_page):
    page = open_page(exhausted)
    with other_site() as site:
        blocked = page.evaluate(
            """async (site) => {
                const script = document.createElement("script");
                script.textContent = "window.hasRun = true";
                document.body.append(script);
                const answer = await fetch(site, {mode: "no-cors"}).then(() => "sent", () => "blocked");
                return [window.hasRun ?? false, answer];
            }""",
            site,
        )
    assert blocked == [False, "blocked"]
    # The browser reports both.
    page.problems.clear()


def test_eleventh_page_says_that_too_many_are_open(exhausted, open_page):
    pages = [open_page(exhausted) for _ in range(10)]
    eleventh = open_page(exhausted, wait=False)
    expect(eleventh.locator("#state")).to_contain_text("10 pages are open already")
    pages[0].close()
    expect(eleventh.get_by_role("heading", name="Overview")).to_be_visible()
    # The browser reports each answer 503.
    eleventh.problems.clear()
