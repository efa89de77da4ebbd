"""The built site in a real browser, from a folder, without a web server or a network."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs import assemble
from tests.support.browser import Browser, find_chromium
from tests.support.wait import wait_until

CHROMIUM = find_chromium()
# The text that a copy button takes from each block of code.
COPIED = """[...document.querySelectorAll('pre > code')].map(code => {
    code.setAttribute('data-md-copying', '')
    return code.innerText
})"""
TOO_WIDE = """[...document.querySelectorAll('.md-content *')].filter(one =>
    one.getBoundingClientRect().right > innerWidth
    && !one.closest('pre, .md-typeset__scrollwrap, p:has(> img)')
).map(one => one.outerHTML.slice(0, 80))"""
RESULTS = "[...document.activeElement.shadowRoot?.querySelectorAll('a') ?? []].map(a => a.href)"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium-headless-shell)"
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    assemble.assemble(folder)
    zensical = Path(sys.executable).with_name("zensical")
    command = [zensical, "build", "--strict", "-f", folder / "zensical.toml"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "site"


@pytest.fixture
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None
    with Browser(CHROMIUM) as found:
        yield found


def look(browser: Browser, page: Path, width: int) -> None:
    browser.open(page.as_uri(), width=width)
    wait_until(lambda: browser.evaluate("document.readyState") == "complete", 30, page.name)


def test_search_finds_a_page(site: Path, browser: Browser) -> None:
    look(browser, site / "index.html", 1400)
    browser.evaluate("document.querySelector('label[for=__search]').click()")
    wait_until(lambda: browser.evaluate("!!document.activeElement.shadowRoot"), 30, "the search")
    browser.ask("Input.insertText", text="error feedback")
    wait_until(lambda: browser.evaluate(RESULTS), 30, "results")
    assert any("compression.html" in address for address in browser.evaluate(RESULTS))
    assert browser.complaints == []


def test_copied_commands_have_no_prompts(site: Path, browser: Browser) -> None:
    look(browser, site / "index.html", 1400)
    lines = [line for text in browser.evaluate(COPIED) for line in text.splitlines()]
    assert "reducer serve --port 2222 &" in lines
    assert not [line for line in lines if line.startswith("$")]


@pytest.mark.timeout(600)
def test_no_page_is_wider_than_the_screen(site: Path, browser: Browser) -> None:
    for page in sorted(set(site.glob("*.html")) - {site / "404.html"}):  # only a server shows that
        look(browser, page, 400)
        assert browser.evaluate(TOO_WIDE) == [], page.name
        browser.resize(1400)
        assert browser.evaluate(TOO_WIDE) == [], page.name
        assert browser.complaints == [], page.name
