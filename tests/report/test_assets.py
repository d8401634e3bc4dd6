"""The page of megatape report in a real browser, without a window: Debian's chromium and chromium-driver."""

import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from megatape.data.synthetic.flip_flop import FlipFlop
from megatape.report.page import write_report
from megatape.report.suite_page import write_page
from megatape.tasks.engine.task import Measure
from tests.helpers.contrast import contrast
from tests.helpers.reports import HOSTILE, make_results, make_run
from tests.helpers.suite_records import make_records

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

NEEDED = ("chromium", "chromedriver")


def missing() -> str:
    """What keeps this machine from running a browser, or ""."""
    if programs := [program for program in NEEDED if shutil.which(program) is None]:
        return f"no {' and no '.join(programs)}: apt-get install chromium chromium-driver"
    try:
        import selenium  # noqa: F401
    except ModuleNotFoundError:
        return "no selenium: pip install -c constraints.txt -e .[test]"
    return ""


@pytest.fixture(scope="module")
def browser() -> Iterator["Chrome"]:
    if reason := missing():
        if os.environ.get("MEGATAPE_BROWSER_TESTS") == "required":
            pytest.fail(f"MEGATAPE_BROWSER_TESTS=required, but there is {reason}")
        pytest.skip(f"there is {reason}")
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.binary_location = shutil.which(NEEDED[0]) or ""
    with Chrome(options=options, service=Service(shutil.which(NEEDED[1]))) as running:
        yield running


@pytest.fixture(scope="module")
def page(browser: "Chrome", data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of one run, a run without position tensors whose name is HTML, one of another depth, and an evaluation."""
    folder = tmp_path_factory.mktemp("report")
    runs = [make_run(folder / f"tape-{seed}", data_directory, seed=seed, num_layers=3).directory for seed in (1, 2)]
    runs += [make_run(folder / HOSTILE.replace("/", ""), data_directory, encoding="rope").directory]
    runs += [make_run(folder / "deep", data_directory, num_layers=5).directory]
    make_results(runs[0] / "evaluated", "perplexity", HOSTILE, [Measure("nats", 1.5, None, 9)], paper={"TAPE": {"nats": 1.25}})
    page, _ = write_report(runs, [], folder / "out")
    browser.get(page.as_uri())
    return page


def values(browser: "Chrome", script: str) -> Any:
    return browser.execute_script(f"return {script}")


PICTURES = "[...document.querySelectorAll('#maps canvas')].map((canvas) => canvas.toDataURL())"


def test_page(browser: "Chrome", page: Path) -> None:
    """It draws everything, by itself: no error, no request but for the file, nothing of a run's name run or shown as HTML."""
    assert values(browser, "document.title").startswith("tape-1, tape-2, <img src=x onerror=")
    assert values(browser, "document.querySelectorAll('img').length") == 0
    assert values(browser, "[...document.querySelectorAll('#charts figcaption')].map((one) => one.firstChild.textContent)") == [
        "Loss",
        "Learning rate",
        "Gradient norm",
        "Throughput",
        "Peak memory",
    ]
    assert values(browser, "document.querySelectorAll('#charts .curve').length") == 5 * 3
    assert values(browser, "document.querySelectorAll('#charts .dot').length") == 3 * 4
    assert values(browser, "document.querySelectorAll('#charts .band').length") == 1
    widest = "Math.max(...[...document.querySelectorAll('svg text, svg path')].map((one) => one.getBoundingClientRect().right))"
    assert values(browser, widest) <= values(browser, "document.documentElement.clientWidth")
    pixels = np.asarray(Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB"))
    colours, counts = np.unique(pixels @ np.array([2**16, 2**8, 1]), return_counts=True)
    assert len(colours) > 20 and counts.max() < 0.99 * counts.sum()

    assert [entry for entry in browser.get_log("browser") if entry["level"] not in ("INFO", "DEBUG")] == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = {message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"}
    assert sent == {page.as_uri()}


def test_slider(browser: "Chrome", page: Path) -> None:
    """The arrow keys move it; maps, norms and gains follow. Another run has its own."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select

    slider, now = browser.find_element(By.ID, "view-step"), browser.find_element(By.ID, "view-now")
    gains = "document.getElementById('gains').textContent"
    assert now.text == "20"
    seen = []
    for step in (20, 15, 10, 5):
        assert now.text == slider.get_attribute("aria-valuetext").removeprefix("step ") == str(step)
        pictures = values(browser, PICTURES)
        assert len(pictures) == 3
        seen.append(
            (*pictures[1:], values(browser, gains), values(browser, "document.querySelector('.now').getAttribute('x1')"))
        )
        slider.send_keys(Keys.ARROW_LEFT)
    for kind in zip(*seen, strict=True):
        assert len(set(kind)) == 4
    assert values(browser, "document.querySelector('#maps figcaption').textContent") == " layer 1: norm 1, scale ±1"
    browser.execute_script("document.querySelector('#maps canvas').dispatchEvent(new PointerEvent('pointermove'))")
    assert browser.find_element(By.ID, "pointed").text.startswith('layer 1: token 0 "<0>"')
    Select(browser.find_element(By.ID, "view-run")).select_by_visible_text("deep")
    assert now.text == "20" and len(values(browser, PICTURES)) == 5
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_legend_and_names(browser: "Chrome", page: Path) -> None:
    """A button hides its lines, and every control has a name."""
    from selenium.webdriver.common.by import By

    controls = browser.find_elements(By.CSS_SELECTOR, "button, select, input, svg, canvas")
    assert len(controls) > 10 and all(control.accessible_name for control in controls)
    button = browser.find_element(By.CSS_SELECTOR, ".legend button")
    assert button.accessible_name == "tape (2 seeds)"
    for pressed, curves in (("false", 2 * 5), ("true", 3 * 5)):
        button.click()
        assert button.get_attribute("aria-pressed") == pressed
        assert values(browser, "document.querySelectorAll('#charts .curve').length") == curves


def test_dark_and_narrow(browser: "Chrome", page: Path) -> None:
    """Text has a contrast of 4.5 to 1 in light and dark, and a telephone's width is not exceeded."""
    colours = (
        "[getComputedStyle(document.body)[arguments[0]], getComputedStyle(document.querySelector('.quiet'))[arguments[0]]]"
    )
    grounds = set()
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        ground = browser.execute_script(f"return {colours}", "backgroundColor")[0]
        texts = browser.execute_script(f"return {colours}", "color")
        assert min(contrast(text, ground) for text in texts) >= 4.5, scheme
        grounds.add(ground)
    assert len(grounds) == 2
    browser.set_window_size(500, 900)
    assert values(browser, "document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_suite_page(browser: "Chrome", tmp_path: Path) -> None:
    """Draws a chart for each split, with 0 and 100% on its axis and what x is below it. Without charts there is no error."""
    records = make_records(["flip_flop"], ["rope", "tape"], limited=())
    for name, written in {"empty.html": [], "suite.html": records}.items():
        write_page(written, [], tmp_path / name)
        browser.get((tmp_path / name).as_uri())
        assert [entry for entry in browser.get_log("browser") if entry["level"] not in ("INFO", "DEBUG")] == [], name
    assert values(browser, "document.querySelectorAll('#charts .curve').length") == 3 * 2
    assert values(browser, "document.querySelectorAll('#charts .band').length") == 3 * 2
    texts = values(browser, "[...document.querySelectorAll('#charts figure:first-child text')].map((one) => one.textContent)")
    assert {"0", "100", FlipFlop.axis} <= set(texts)
