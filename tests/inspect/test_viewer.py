"""The HTML view of heads: what it holds, and what it does in headless Chromium, opened from the disk."""

import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest

from numtrans.errors import ConfigError, ShapeError
from numtrans.inspect import attention_html, viewer, write_attention

NASTY = [
    "<script>alert(1)</script>", "</script>", "\"a'b\"", "line\nbreak", "&amp;", " two ", "", "\u2028", "\udc80",
    "${x}",
]  # fmt: skip


def weights(*shape, seed=0):
    return np.random.default_rng(seed).dirichlet(np.full(shape[-1], 0.3), shape[:-1])


class Page(HTMLParser):
    """Tags and texts of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self._open = [], {}, []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "img"):
            self._open.append((tag, dict(attributes).get("class")))

    def handle_endtag(self, tag):
        while self._open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        self.texts[self._open[-1] if self._open else None] = data


def data_of(view):
    return json.loads(Page(view).texts["script", "data"])


def test_the_page_holds_the_weights_to_three_digits():
    layers = [weights(2, 3, 3), weights(1, 3, 3, seed=1)]
    view = attention_html(layers, ["a", "b", "c"])
    data = data_of(view)
    assert data["queries"] == data["keys"] == ["a", "b", "c"]
    assert [len(layer) for layer in data["layers"]] == [2, 1]
    for found, expected in zip(data["layers"], layers):
        np.testing.assert_allclose(np.array(found) / 1000, expected.reshape(len(expected), -1), atol=0.5001e-3)


def test_cross_attention_and_a_batch_of_one():
    P = weights(1, 2, 3, 4)
    view = attention_html(P, list("abc"), list("wxyz"))
    assert view == attention_html([P[0]], list("abc"), list("wxyz"))
    assert (data_of(view)["queries"], data_of(view)["keys"]) == (list("abc"), list("wxyz"))


def test_tokens_and_title_stay_text():
    T = len(NASTY)
    view = attention_html(weights(1, T, T), NASTY, title="</title><script>alert('{{data}}')</script>")
    page = Page(view)
    plain = Page(attention_html(weights(1, 2, 2), ["a", "b"]))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]  # nothing has become a tag
    assert page.texts["title", None] == page.texts["h1", None] == "</title><script>alert('{{data}}')</script>"
    shown = data_of(view)["queries"]
    assert shown == [
        "<script>alert(1)</script>", "</script>", "\"a'b\"", "line\u21b5break", "&amp;", "\u2423two\u2423", "\u2205",
        "\u2028", "?", "${x}",
    ]  # fmt: skip
    view.encode("utf-8")
    frame = Page(view._repr_html_())
    assert [tag for tag, _ in frame.tags] == ["iframe"]
    assert frame.tags[0][1]["srcdoc"] == view


def test_nothing_comes_from_elsewhere():
    view = attention_html(weights(1, 2, 2), ["a", "b"])
    for text in (view, view._repr_html_()):
        assert not re.search(r"//\w|url\(|@import|\bsrc\s*=|href|import\(|fetch|XMLHttp", text.replace("  // ", "  "))
    assert not any({"src", "href", "id"} & set(attributes) for _, attributes in Page(view).tags)


def test_refuses_what_does_not_fit():
    with pytest.raises(ShapeError, match=r"layer 2 have shape \(1, 3, 3\).*\(1 or more, 2, 2\)"):
        attention_html([weights(1, 2, 2), weights(1, 3, 3)], ["a", "b"])
    with pytest.raises(ShapeError, match="of one text"):
        attention_html(weights(2, 1, 2, 2), ["a", "b"])
    with pytest.raises(ShapeError, match="no layer, no query or no key"):
        attention_html([], ["a"])
    with pytest.raises(ConfigError, match="each row must sum to 1"):
        attention_html(np.ones((1, 2, 2)), ["a", "b"])
    T = 1001
    with pytest.raises(ConfigError, match=r"1,002,001 weights \(1 heads, 1001 queries.*at most 1,000,000"):
        attention_html(np.eye(T)[None], ["a"] * T)


@pytest.mark.parametrize("tokens", [None, 5, iter("ab")])
def test_tokens_that_are_no_sequence(tokens):
    with pytest.raises(ShapeError, match=rf"attention: tokens are a {type(tokens).__name__}, expected a sequence"):
        attention_html(np.eye(2)[None], tokens)


def test_the_largest_view_is_a_few_megabytes():
    view = attention_html([np.full((10, 100, 100), 0.01)] * 10, ["word"] * 100)
    assert sum(map(len, view.weights)) * 100 * 100 == viewer.MAX_WEIGHTS
    assert len(view) < 5e6


def test_files_by_their_ending(tmp_path):
    P, tokens = [weights(2, 3, 3)], ["a", "$", "\n"]
    write_attention(tmp_path / "heads.html", P, tokens, title="Heads")
    assert (tmp_path / "heads.html").read_text(encoding="utf-8") == attention_html(P, tokens, title="Heads")
    write_attention(tmp_path / "heads.png", P, tokens)
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="no ending"):
        write_attention(tmp_path / "heads", P, tokens)
    with pytest.raises(ShapeError, match="layer 1"):
        write_attention(tmp_path / "heads.png", P, ["a"])
    figure = attention_html(P, tokens, title="Heads").figure()
    assert figure.get_suptitle() == "Heads"
    assert [axis.get_title() for axis in figure.axes[:2]] == ["layer 1, head 1", "layer 1, head 2"]


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
in_a_browser = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium or chromedriver is missing")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--proxy-server=127.0.0.1:9", "--host-resolver-rules=MAP * ~NOTFOUND",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def press(browser, *keys):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    for key in keys:
        ActionChains(browser).send_keys(getattr(Keys, key)).perform()


STATE = """
const chosen = name => [...document.querySelectorAll(name)].findIndex(e => e.getAttribute('aria-selected') === 'true');
return {
  query: chosen('.queries .token'), head: chosen('.head'), reading: document.querySelector('.reading').textContent,
  values: [...document.querySelectorAll('.keys .value')].map(e => Number(e.textContent)),
  lines: document.querySelectorAll('svg line').length,
  focus: document.activeElement.getAttribute('role') + ' ' +
         (document.activeElement.getAttribute('aria-label') || document.activeElement.textContent),
  outline: getComputedStyle(document.activeElement).outlineStyle,
  stops: document.querySelectorAll('[tabindex="0"]').length,
  theme: document.querySelector('main').dataset.theme,
};
"""


def log(browser):
    return [entry["message"] for entry in browser.get_log("browser")]


@in_a_browser
def test_keys_and_mouse_choose(browser, tmp_path):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    layers, tokens = [weights(3, 5, 5), weights(2, 5, 5, seed=1)], ["the", "<b>cat</b>", "sat", "\n", " on"]
    write_attention(tmp_path / "view.html", layers, tokens)
    browser.get((tmp_path / "view.html").as_uri())

    def seen(layer, head, query):
        state = browser.execute_script(STATE)
        assert (state["query"], state["head"]) == (query, 3 * layer + head)
        np.testing.assert_allclose(state["values"], layers[layer][head, query], atol=0.501e-3)
        assert state["lines"] == (np.rint(layers[layer][head, query] * 1000) >= 5).sum()
        largest = int(np.argmax(layers[layer][head, query]))
        shown = ["the", "<b>cat</b>", "sat", "\u21b5", "\u2423on"]
        start = f"Layer {layer + 1}, head {head + 1}: token {query + 1}, \u201c{shown[query]}\u201d, attends to "
        assert state["reading"].startswith(start + f"\u201c{shown[largest]}\u201d ")
        assert state["stops"] == 2  # one for each list
        return state

    seen(0, 0, 0)
    press(browser, "TAB")
    state = seen(0, 0, 0)
    assert (state["focus"], state["outline"]) == ("option layer 1, head 1", "solid")
    press(browser, "ARROW_RIGHT", "ARROW_RIGHT")
    assert seen(0, 2, 0)["focus"] == "option layer 1, head 3"
    press(browser, "ARROW_DOWN")
    assert seen(1, 1, 0)["focus"] == "option layer 2, head 2"  # that layer has two
    press(browser, "HOME", "ARROW_LEFT", "ARROW_UP", "TAB", "ARROW_DOWN")
    state = seen(0, 0, 1)
    assert (state["focus"], state["outline"]) == ("option <b>cat</b>", "solid")
    press(browser, "END", "ARROW_DOWN", "PAGE_DOWN", "ARROW_RIGHT")
    seen(1, 1, 4)
    press(browser, "HOME")
    seen(1, 1, 0)
    ActionChains(browser).move_to_element(browser.find_elements(By.CSS_SELECTOR, ".queries .token")[2]).perform()
    seen(1, 1, 2)
    browser.find_elements(By.CSS_SELECTOR, ".head")[1].click()
    seen(0, 1, 2)
    assert log(browser) == []


PIXEL = """
const copy = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
copy.drawImage(document.querySelectorAll('canvas')[arguments[0]], 0, 0);
return [...copy.getImageData(arguments[2], arguments[1], 1, 1).data];
"""


@in_a_browser
def test_pictures_of_the_heads_and_both_themes(browser, tmp_path):
    from selenium.webdriver.common.by import By

    P = np.array([[[1, 0, 0], [0.5, 0, 0.5]]])
    write_attention(tmp_path / "view.html", P, ["a", "b"], ["x", "y", "z"])
    for theme, color in (("light", [0, 114, 178]), ("dark", [86, 180, 233])):
        media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        browser.get((tmp_path / "view.html").as_uri())
        assert browser.execute_script(STATE)["theme"] == theme
        assert browser.execute_script(PIXEL, 0, 0, 0) == [*color, 255]  # row: the query, column: the key
        assert browser.execute_script(PIXEL, 0, 0, 1)[3] == 0
        assert abs(browser.execute_script(PIXEL, 0, 1, 2)[3] - 127.5) < 1
        for pair in browser.execute_script(CONTRAST):
            assert contrast(*pair) >= 4.5
        browser.find_elements(By.CSS_SELECTOR, ".queries .token")[1].click()
        assert browser.execute_script(STATE)["values"] == [0.5, 0, 0.5]  # three keys for two queries
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert log(browser) == []


CONTRAST = """
const style = name => getComputedStyle(document.querySelector(name)), main = style('main').backgroundColor;
return [[main, style('.help').color], [main, style('.reading').color], [main, style('.layer > span').color],
        [style('.token .bar').backgroundColor, style('.keys .token').color],
        [style('[aria-selected="true"].token').backgroundColor, style('.queries .token').color]];
"""


def contrast(*colors):
    """Contrast ratio of two CSS colors (WCAG 2)."""
    light = []
    for color in colors:
        c = np.array([float(part) for part in re.findall(r"[\d.]+", color)[:3]]) / 255
        c = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        light.append(c @ [0.2126, 0.7152, 0.0722])
    return (max(light) + 0.05) / (min(light) + 0.05)


@in_a_browser
def test_two_views_put_into_a_page_as_a_notebook_does(browser, tmp_path):
    """Outputs are set as innerHTML, where no script of the page runs; each frame is on its own and follows the page."""
    views = [attention_html(weights(1, 2, 2, seed=seed), ["a", "b"]) for seed in (0, 1)]
    page = tmp_path / "notebook.html"
    page.write_text('<!doctype html><html><body style="background: rgb(17, 17, 17)"><div></div></body></html>')
    browser.get(page.as_uri())
    browser.execute_script(
        "document.querySelector('div').innerHTML = arguments[0];", "".join(v._repr_html_() for v in views)
    )
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    ready = "return [...document.querySelectorAll('iframe')].every(f => f.contentDocument.querySelector('svg line'));"
    WebDriverWait(browser, 10).until(lambda driver: driver.execute_script(ready))
    for number, frame in enumerate(browser.find_elements(By.CSS_SELECTOR, "iframe")):
        browser.switch_to.frame(frame)
        browser.find_element(By.CSS_SELECTOR, ".queries .token").click()
        press(browser, *["ARROW_DOWN"] * (1 - number))
        state = browser.execute_script(STATE)
        assert (state["query"], state["theme"]) == (1 - number, "dark")
        np.testing.assert_allclose(state["values"], views[number].weights[0][0, 1 - number], atol=0.501e-3)
        browser.switch_to.default_content()
    browser.execute_script("document.body.style.background = 'rgb(250, 250, 250)';")
    light = "return document.querySelector('iframe').contentDocument.querySelector('main').dataset.theme === 'light';"
    WebDriverWait(browser, 10).until(lambda driver: driver.execute_script(light))
    assert log(browser) == []
