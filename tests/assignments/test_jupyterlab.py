"""Problem set 5 as a student meets it: JupyterLab in headless Chromium, the check seen to fail, an answer typed in, the
check seen to pass.

With ``NUMTRANS_SCREENSHOTS=FOLDER`` a picture of the page before and after is kept there.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from assignment import FOLDER, cell_of, read

from numtrans.course import build

pytest.importorskip("jupyterlab")
pytest.importorskip("selenium")
from selenium import webdriver  # noqa: E402
from selenium.common.exceptions import StaleElementReferenceException  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
SHOTS = os.environ.get("NUMTRANS_SCREENSHOTS")
PATH = FOLDER / "ps5-layernorm" / "ps5-layernorm.ipynb"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--window-size=1280,1000", "--no-proxy-server",
]  # fmt: skip
# Every cell in the page at once; no question about news from the network.
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium or chromedriver is missing"),
]


@pytest.fixture
def lab(tmp_path):
    """The address of a JupyterLab over a folder with the student's copy; it is stopped in all cases."""
    build(PATH, tmp_path / "work")
    for name, values in SETTINGS.items():
        file = tmp_path / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folders = (
        "JUPYTER_CONFIG_DIR",
        "JUPYTER_DATA_DIR",
        "JUPYTER_RUNTIME_DIR",
        "IPYTHONDIR",
        "JUPYTERLAB_WORKSPACES_DIR",
    )
    environment = os.environ | {name: str(tmp_path / name) for name in folders}
    environment |= {"JUPYTERLAB_SETTINGS_DIR": str(tmp_path / "settings"), "OMP_NUM_THREADS": "1"}
    arguments = [
        "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token=",
        f"--ServerApp.root_dir={tmp_path / 'work'}", "--LabApp.extension_manager=readonly", "--allow-root",
    ]  # fmt: skip
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *arguments], stdout=log, stderr=log, env=environment, cwd=tmp_path
        )
    address = f"http://127.0.0.1:{port}"
    plain = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        for _ in range(300):
            assert server.poll() is None, (tmp_path / "log").read_text(encoding="utf-8", errors="replace")
            try:
                plain.open(f"{address}/api", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        yield address
    finally:
        server.terminate()  # it stops its kernels, too
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@pytest.fixture
def browser(tmp_path):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS, f"--user-data-dir={tmp_path / 'chromium'}"]:
        options.add_argument(flag)
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """The notebook in the browser."""

    def __init__(self, browser, address):
        self.browser = browser
        browser.get(f"{address}/doc/tree/{PATH.name}")
        idle = ".jp-Notebook-ExecutionIndicator[data-status='idle']"  # until then a cell that is run asks for a kernel
        self.until(lambda: self.cells() and browser.find_elements(By.CSS_SELECTOR, idle))

    def until(self, condition, seconds=60):
        wait = WebDriverWait(
            self.browser, seconds, poll_frequency=0.1, ignored_exceptions=[StaleElementReferenceException]
        )
        return wait.until(lambda _: condition())

    def cells(self):
        return self.browser.find_elements(By.CSS_SELECTOR, ".jp-Notebook .jp-CodeCell")

    def cell(self, text):
        """The code cell that holds `text`."""
        return self.until(
            lambda: next((c for c in self.cells() if text in c.find_element(By.CSS_SELECTOR, ".cm-content").text), None)
        )

    def click(self, text):
        cell = self.cell(text)
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", cell)
        cell.find_element(By.CSS_SELECTOR, ".cm-content").click()
        self.until(lambda: "jp-mod-active" in self.cell(text).get_attribute("class"))

    def chord(self, modifier, key):
        webdriver.ActionChains(self.browser).key_down(modifier).send_keys(key).key_up(modifier).perform()

    def run(self, text, shows=""):
        """Run the cell by Shift-Enter, until it is done and shows something that begins with `shows`."""
        before = self.prompt(text)
        self.click(text)
        self.chord(Keys.SHIFT, Keys.ENTER)
        self.until(lambda: self.prompt(text) not in (before, "[*]:", "[ ]:") and self.output(text).startswith(shows))
        return self.output(text)

    def prompt(self, text):
        return self.cell(text).find_element(By.CSS_SELECTOR, ".jp-InputPrompt").text

    def output(self, text):
        areas = self.cell(text).find_elements(By.CSS_SELECTOR, ".jp-OutputArea-output")
        return "\n".join(area.text for area in areas)

    def replace(self, cell, text):
        """Select all in `cell` and type `text`. The editor indents new lines itself: each line is typed over that."""
        self.click(cell)
        self.chord(Keys.CONTROL, "a")
        new_line = Keys.ENTER + Keys.SHIFT + Keys.HOME + Keys.NULL
        self.browser.switch_to.active_element.send_keys(text.replace("\n", new_line))

    def picture(self, name, text):
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'end'})", self.cell(text))
        if SHOTS:
            Path(SHOTS).mkdir(parents=True, exist_ok=True)
            self.browser.save_screenshot(str(Path(SHOTS) / f"{name}.png"))


def test_a_student_types_an_answer_and_sees_the_check_pass(lab, browser):
    page = Page(browser, lab)
    cell, check = "class LayerNorm(Module)", 'with Check("Check 1 (LayerNorm.forward)")'
    for text in ("Installs numtrans on Google Colab", "from numtrans.course import Check", cell):
        assert page.run(text) == ""
    shown = page.run(check, "Check 1 (LayerNorm.forward): not yet.")
    assert shown.split("\n")[1].startswith("This is not written yet. Write LayerNorm.forward")
    assert "Traceback" not in shown
    page.click(check)
    page.browser.switch_to.active_element.send_keys("x = 1")
    assert "x = 1" not in page.cell(check).text  # it can be run, not edited
    page.picture("assignment-before", check)

    solution = cell_of(read(PATH), "layernorm-forward")["source"].split("\n")
    lines = [line.split("  #")[0].rstrip() for line in solution if not line.lstrip().startswith(("###", "#>", '"""'))]
    typed = [line for line in lines if line]
    page.replace(cell, "\n".join(typed))
    editor = page.cell(cell).find_element(By.CSS_SELECTOR, ".cm-content")
    page.until(lambda: editor.text.rstrip().endswith(typed[-1]))
    assert [line.rstrip() for line in editor.text.split("\n")] == typed
    page.picture("assignment-answer", cell)
    assert page.run(cell) == ""
    assert page.run(check, "Check 1 (LayerNorm.forward): passed.") == "Check 1 (LayerNorm.forward): passed."
    page.picture("assignment-after", check)
