"""The documentation as a site, built by mdBook."""

import html.parser
import shutil
import subprocess
import urllib.parse

import pytest

from processes import ROOT

pytestmark = pytest.mark.tools


class Page(html.parser.HTMLParser):
    """The ids and the links of a page."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links = {""}, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.add(attributes.get("id"))
        self.links += filter(None, (attributes.get("href"), attributes.get("src")))


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    program = shutil.which("mdbook") or pytest.skip("mdbook: not installed; tests/run --tools builds it")
    folder = tmp_path_factory.mktemp("book")
    command = [program, "build", "--dest-dir", folder, ROOT / "docs"]
    built = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr
    assert "WARN" not in built.stderr and "ERROR" not in built.stderr, built.stderr
    return folder


def test_links_of_the_site_lead_to_pages_and_headings(book):
    pages = {path: Page(path.read_text()) for path in book.rglob("*.html") if path.name not in ("404.html", "toc.html")}
    assert len(pages) > 40
    wrong = []
    for path, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            if not target.exists() or target in pages and urllib.parse.unquote(parts.fragment) not in pages[target].ids:
                wrong.append(f"{path.relative_to(book)}: {link}")
    assert wrong == []


def test_search_of_the_site_knows_every_page(book):
    [index] = book.glob("searchindex*.js")
    text = index.read_text()
    pages = {path.relative_to(book).as_posix() for path in book.rglob("*.html")} - {"404.html", "print.html", "toc.html"}
    assert [page for page in pages if f'"{page}#' not in text.replace("\\", "")] == []
