"""A real browser, driven headless, and checks of what it shows."""

import functools
import re
import shutil

import pytest
from playwright.sync_api import sync_playwright

import clients

# The first that is installed; tests/run unpacks the second below the target directory.
BROWSERS = ("chromium", "chromium-headless-shell", "google-chrome")
AXE = "axe-core@4.14.1"
AXE_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# A phone and a usual window, in pixels.
PHONE = 360
WIDTHS = (PHONE, 1440)
# In milliseconds.
TIMEOUT = 20_000
# A name of another site that leads to this machine, as DNS rebinding makes it.
REBOUND = "rebound.example"


class Browser:
    """A running browser."""

    def __init__(self):
        program = next(filter(None, map(shutil.which, BROWSERS)), None)
        if program is None:
            pytest.skip("chromium: not installed")
        self.playwright = sync_playwright().start()
        self.chromium = self.playwright.chromium.launch(
            executable_path=program,
            # The sandbox of Chromium needs a user namespace, which a container often has not.
            args=["--no-sandbox", f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1"],
        )

    def open(self, address, *, view="overview", wait=True, scheme="light", width=1440, height=900):
        """The page of an admin listener, showing a view, in a window of its own. Requests for URLs of others are problems
        of the page."""
        own = f"http://{address}/"
        window = {"viewport": {"width": width, "height": height}, "has_touch": width == PHONE}
        context = self.chromium.new_context(color_scheme=scheme, **window)
        context.set_default_timeout(TIMEOUT)
        page = context.new_page()
        page.problems = []
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("console", lambda message: message.type == "error" and page.problems.append(message.text))
        page.on("request", lambda asked: asked.url.startswith(own) or page.problems.append(asked.url))
        page.goto(f"{own}#{view}")
        if wait:
            page.get_by_role("heading", level=2).first.wait_for()
        return page

    def stop(self):
        self.chromium.close()
        self.playwright.stop()


@functools.cache
def axe():
    """The script of axe-core, installed with npm."""
    if clients.missing("node"):
        pytest.skip("node: not installed; it installs axe-core")
    home = clients.BUILDS / AXE
    script = home / "node_modules" / "axe-core" / "axe.min.js"
    with clients.locked(AXE):
        if not script.exists():
            home.mkdir(parents=True, exist_ok=True)
            install = ["npm", "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(home), AXE]
            done = clients.run(install, home, clients.BUILD_TIMEOUT)
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return script.read_text()


def violations(page):
    """What axe-core finds in the page as it is now."""
    page.evaluate(axe())
    result = page.evaluate("rules => axe.run({runOnly: rules})", AXE_RULES)
    assert len(result["passes"]) > 10, "axe-core has looked at the page"
    return [(one["id"], [node["html"] for node in one["nodes"]]) for one in result["violations"]]


def is_wider_than_window(page):
    return page.evaluate("document.documentElement.scrollWidth > innerWidth")


def broken_parts(page):
    """The texts that must stay on one line and do not: numbers, and parts of keys and paths."""
    return page.evaluate(
        """() => {
            const isBroken = (part) => {
                const range = document.createRange();
                range.selectNodeContents(part);
                return new Set([...range.getClientRects()].map((line) => Math.round(line.top))).size > 1;
            };
            const all = [...document.querySelectorAll(".whole > span, td.number > *, .figure")];
            return all.filter(isBroken).map((part) => part.textContent);
        }"""
    )


def is_in_sight(part):
    """Whether no scrolling sideways is needed to see an element. No, if the page has replaced it meanwhile."""
    return part.evaluate(
        """(part) => {
            if (!part.isConnected) return false;
            const { left, right, width, height } = part.getBoundingClientRect();
            const outer = part.closest(".scroll").getBoundingClientRect();
            const isInside = outer.left <= left && right <= outer.right && 0 <= left && right <= innerWidth;
            return isInside && width > 0 && height > 0;
        }"""
    )


def is_dark(page):
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", background)[:3])) < 3 * 128
