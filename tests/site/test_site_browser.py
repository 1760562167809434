"""Every page in headless Chromium, from the disk and with the network closed.

Wide and narrow, light and dark. With ``NUMTRANS_SCREENSHOTS=FOLDER`` pictures of all of them are kept there.
"""

import base64
import os
import re
import shutil
from pathlib import Path

import pytest
from site_files import SITE, chapters_and_texts

selenium = pytest.importorskip("selenium")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
SHOTS = os.environ.get("NUMTRANS_SCREENSHOTS")
PAGES = chapters_and_texts()

pytestmark = [
    pytest.mark.skipif(not PAGES, reason="the site is not built (python docs/build.py)"),
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium or chromedriver is missing"),
]

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--allow-file-access-from-files", "--proxy-server=127.0.0.1:9", "--host-resolver-rules=MAP * ~NOTFOUND",
]  # fmt: skip

# The text that a reader sees, without code and without what MathJax has made: TeX that is still there was not rendered.
TEXT = """
const walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
const pieces = [];
for (let n = walker.nextNode(); n; n = walker.nextNode())
  if (!n.parentElement.closest('pre, code, script, style, mjx-container')) pieces.push(n.data);
return pieces.join(' ');
"""
MATH = """
const nodes = [...document.querySelectorAll('.math')].filter(n => n.matches('span, div'));
return {
  all: nodes.length,
  bare: nodes.filter(n => !n.querySelector('mjx-container svg')).map(n => n.textContent),
  wrong: [...document.querySelectorAll('[data-mml-node="merror"], mjx-merror, mjx-container [fill="red"]')]
    .map(n => n.closest('.math').textContent),  // red is a command that MathJax does not know
  color: nodes.length ? getComputedStyle(nodes[0]).color : null,
  ink: nodes.length ? getComputedStyle(nodes[0].querySelector('svg g') || nodes[0]).fill : null,
};
"""
IMAGES = """
return [...document.images].filter(i => i.getAttribute('src')).filter(i => !(i.complete && i.naturalWidth > 0))
  .map(i => i.src);
"""
CLIPPED = """
return [...document.querySelectorAll('div.math, mjx-container[display="true"]')]
  .filter(n => n.getClientRects().length && n.scrollWidth > n.clientWidth + 1).map(n => n.textContent.slice(0, 120));
"""
# Formulas whose em, 1000 units of the drawing, is shown with less than 15 pixels (20 unless one had to shrink).
SHRUNK = """
return [...document.querySelectorAll('mjx-container[display="true"] > svg')].filter(svg => {
  const shown = svg.getBoundingClientRect().width, drawn = svg.viewBox.baseVal.width;
  return drawn && shown && shown / drawn < 0.015;
}).map(svg => svg.closest('.math').textContent.slice(0, 120));
"""
WIDTHS = "return [document.documentElement.scrollWidth, document.body.scrollWidth, window.innerWidth];"
LOADED = "return performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith('file:'));"
THEME = """
document.getAnimations().forEach(animation => animation.finish());  // colors may fade from one theme to the other
return document.documentElement.dataset.theme;
"""
COLORS = """
const style = e => getComputedStyle(e), seen = c => !/^rgba\\(.*, 0\\)$/.test(c) && c !== 'transparent';
const ground = e => { while (e && !seen(style(e).backgroundColor)) e = e.parentElement;
                      return e ? style(e).backgroundColor : 'rgb(255, 255, 255)'; };
const kinds = 'p, li, td, th, dt, dd, h1, h2, h3, h4, a, code, pre, summary, pre span';
const pairs = [...document.querySelectorAll(kinds)]
  .filter(e => e.closest('article') && e.getClientRects().length
               && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
  .map(e => `${ground(e)} ${style(e).color}`);
return [ground(document.querySelector('article')), [...new Set(pairs)].map(pair => pair.split(/ (?=rgb)/))];
"""
# Things that reach beyond the window and are in no box that scrolls: a reader cannot see them.
CUT = """
const scrolls = e => { for (; e && !e.matches('article'); e = e.parentElement)
                         if (['auto', 'scroll'].includes(getComputedStyle(e).overflowX)) return true;
                       return false; };
return [...document.querySelectorAll('article *')]
  .filter(e => e.getBoundingClientRect().right > window.innerWidth + 1 && e.getClientRects().length
               && !e.closest('svg, mjx-assistive-mml') && !scrolls(e))
  .map(e => e.outerHTML.slice(0, 120));
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(120)
    yield driver
    driver.quit()


def show(browser, page, width, theme):
    """Open `page` as a reader with this window and this preference would, and wait until its mathematics is there."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 844 if width < 600 else 900, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    prefer(browser, theme)
    browser.get((SITE / page).as_uri())
    settle(browser)


def prefer(browser, theme):
    """Let the system of the reader prefer `theme`, which the site follows."""
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    )


def settle(browser):
    """Wait for MathJax and for all images."""
    WebDriverWait(browser, 60).until(
        lambda b: b.execute_async_script(
            """
            const done = arguments[arguments.length - 1];
            const math = document.querySelector('.math') && window.MathJax && MathJax.startup;
            Promise.resolve(math ? MathJax.startup.promise : null)
              .then(() => Promise.all([...document.images].filter(i => i.getAttribute('src')).map(i => {
                i.loading = 'eager'; return i.decode().catch(() => null); })))
              .then(() => done(true), () => done(false));
            """
        )
    )


def luminance(color):
    """Relative luminance (WCAG 2) of a color such as ``rgb(0, 0, 0)``."""
    channels = [float(c) / 255 for c in re.findall(r"[\d.]+", color)[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def keep_picture(browser, page, width, theme):
    """The whole page as a PNG in the folder that ``NUMTRANS_SCREENSHOTS`` names."""
    height = min(browser.execute_script("return document.documentElement.scrollHeight"), 12000)
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    path = Path(SHOTS) / f"{page.removesuffix('.html').replace('/', '_')}-{width}-{theme}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(base64.b64decode(shot["data"]))


@pytest.mark.parametrize(("width", "first", "second"), [(1280, "light", "dark"), (390, "dark", "light")])
@pytest.mark.parametrize("page", PAGES)
def test_page(browser, page, width, first, second):
    """Opened with one preference of color, then seen with the other."""
    browser.get_log("browser")  # what an earlier page has left
    show(browser, page, width, first)
    math, text = browser.execute_script(MATH), browser.execute_script(TEXT)
    assert math["bare"] == []
    assert math["wrong"] == []
    assert re.findall(r"\$|\\[a-zA-Z]+|\\[()\[\]]", text) == []
    for theme in (first, second):
        prefer(browser, theme)
        if SHOTS:
            keep_picture(browser, page, width, theme)
        look(browser, width, theme)
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def look(browser, width, theme):
    """What must hold for a page as it is seen now."""
    WebDriverWait(browser, 20).until(lambda b: b.execute_script(THEME) == theme, f"the page does not become {theme}")
    assert browser.execute_script(IMAGES) == []
    assert browser.execute_script(LOADED) == []
    assert max(browser.execute_script(WIDTHS)) == width
    if width > 600:
        assert browser.execute_script(CLIPPED) == []
    assert browser.execute_script(SHRUNK) == []
    math = browser.execute_script(MATH)
    assert math["ink"] == math["color"]
    assert browser.execute_script(CUT) == []
    page, pairs = browser.execute_script(COLORS)
    assert (luminance(page) < 0.2) == (theme == "dark")
    assert len(pairs) > 1
    assert [pair for pair in pairs if contrast(*pair) < 4.5] == []  # WCAG 2, level AA


@pytest.mark.parametrize("width", [1280, 390])
def test_search_finds_the_backward_of_rope(browser, width):
    browser.get_log("browser")
    show(browser, "docs/index.html", width, "light")
    buttons = [b for b in browser.find_elements(By.CSS_SELECTOR, ".search-button__button, .search-button") if
               b.is_displayed()]  # fmt: skip
    buttons[0].click()
    field = next(f for f in browser.find_elements(By.CSS_SELECTOR, "input[name=q]") if f.is_displayed())
    field.send_keys("RoPE backward\n")
    results = WebDriverWait(browser, 30).until(
        lambda b: [a.get_attribute("href") for a in b.find_elements(By.CSS_SELECTOR, "#search-results ul.search li a")]
    )
    assert any("api/layers.html" in link or ("derivations" in link and "rotary" in link) for link in results)
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_theme_can_be_switched(browser, theme):
    show(browser, "docs/index.html", 1280, "dark" if theme == "light" else "light")
    next(b for b in browser.find_elements(By.CSS_SELECTOR, ".theme-switch-button") if b.is_displayed()).click()
    choices = browser.find_elements(By.CSS_SELECTOR, f".theme-switch-container [data-mode={theme}]")
    WebDriverWait(browser, 10).until(lambda _: any(choice.is_displayed() for choice in choices))
    next(choice for choice in choices if choice.is_displayed() and choice.tag_name != "i").click()
    assert browser.execute_script("return document.documentElement.dataset.theme") == theme
    browser.get((SITE / "docs/notation.html").as_uri())  # the next page keeps it
    assert browser.execute_script("return document.documentElement.dataset.theme") == theme
    browser.execute_script("localStorage.clear()")
