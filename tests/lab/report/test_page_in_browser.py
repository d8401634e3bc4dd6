"""The page written by megatape report in a real browser, without a window: Debian's chromium and chromium-driver."""

import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from megatape.data.synthetic.flip_flop import FlipFlop
from megatape.lab.report.page import watch_report, write_report
from megatape.lab.study.suite.page import write_page
from megatape.lab.study.suite.plan import parse_plan
from megatape.lab.tasks.engine.result import Measure
from megatape.run_folder import RunFolder
from megatape.utils.files.json_lines import append_lines
from tests.helpers.checks.contrast import contrast
from tests.helpers.lab.suite_records import make_records, make_suite
from tests.helpers.runs.report_folders import HOSTILE, make_results, make_run

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

NEEDED = ("chromium", "chromedriver")


def missing_requirement() -> str | None:
    """Return the reason why this machine cannot run a browser, or None if it can."""
    missing = [program for program in NEEDED if shutil.which(program) is None]
    if missing:
        return f"no {' and no '.join(missing)}: apt-get install chromium chromium-driver"
    try:
        import selenium  # noqa: F401
    except ModuleNotFoundError:
        return "no selenium: pip install -c constraints.txt -e .[test]"
    return None


@pytest.fixture(scope="module")
def browser() -> Iterator["Chrome"]:
    reason = missing_requirement()
    if reason is not None:
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
    """Page on a run with two seeds, a run without position tensors named by HTML, one with another depth, and an evaluation."""
    folder = tmp_path_factory.mktemp("report")
    runs = [make_run(folder / f"tape-{seed}", data_directory, seed=seed, num_layers=3).directory for seed in (1, 2)]
    runs += [make_run(folder / HOSTILE.replace("/", ""), data_directory, encoding="rope").directory]
    runs += [make_run(folder / "deep", data_directory, num_layers=5).directory]
    make_results(runs[0] / "evaluated", "perplexity", HOSTILE, [Measure("nats", 1.5, None, 9)], paper={"TAPE": {"nats": 1.25}})
    page, _ = write_report(runs, [], folder / "out")
    visit(browser, page)
    return page


def visit(browser: "Chrome", page: Path) -> None:
    """Open a page, and wait until it keeps its elements: a first frame tells charts of their width, and they may draw again."""
    browser.get(page.as_uri())
    browser.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))")


def values(browser: "Chrome", script: str) -> Any:
    return browser.execute_script(f"return {script}")


PICTURES = "[...document.querySelectorAll('#maps canvas')].map((canvas) => canvas.toDataURL())"


def test_page_draws_everything_without_a_network(browser: "Chrome", page: Path) -> None:
    """The page makes no error and no request except for the file, and nothing in a run's name is executed or shown as HTML."""
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
    colors, counts = np.unique(pixels @ np.array([2**16, 2**8, 1]), return_counts=True)
    assert len(colors) > 20
    assert counts.max() < 0.99 * counts.sum()

    assert [entry for entry in browser.get_log("browser") if entry["level"] not in ("INFO", "DEBUG")] == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = {message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"}
    assert sent == {page.as_uri()}


def test_arrow_keys_move_the_slider(browser: "Chrome", page: Path) -> None:
    """Maps, norms and gains follow. Another run has its own slider."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select

    slider = browser.find_element(By.ID, "view-step")
    now = browser.find_element(By.ID, "view-now")
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
    assert now.text == "20"
    assert len(values(browser, PICTURES)) == 5
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_legend_hides_lines_and_controls_have_names(browser: "Chrome", page: Path) -> None:
    """Clicking hides a button's lines, and double-clicking hides all others."""
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    controls = browser.find_elements(By.CSS_SELECTOR, "button, select, input, svg, canvas")
    controls = [control for control in controls if control.is_displayed()]
    assert len(controls) > 10
    assert all(control.accessible_name for control in controls)
    button = browser.find_element(By.CSS_SELECTOR, ".legend button")
    assert button.accessible_name == "tape (2 seeds)"
    shown = "document.querySelectorAll('#charts .curve').length"
    for pressed, curves in (("false", 2 * 5), ("true", 3 * 5)):
        button.click()
        assert button.get_attribute("aria-pressed") == pressed
        assert values(browser, shown) == curves
    ActionChains(browser).double_click(button).perform()  # alone
    assert button.get_attribute("aria-pressed") == "true"
    assert values(browser, shown) == 5
    for other in browser.find_elements(By.CSS_SELECTOR, ".legend button[aria-pressed=false]"):
        other.click()
    assert values(browser, shown) == 3 * 5


LOSS = "#charts figure:first-child"
TICKS = f"[...document.querySelectorAll('{LOSS} text')].map((one) => one.textContent)"


def read_end(browser: "Chrome") -> str:
    """Return what the loss chart says about its last point, reached by the keyboard."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    chart = browser.find_element(By.CSS_SELECTOR, f"{LOSS} svg")
    chart.send_keys(Keys.END)
    return browser.find_element(By.CSS_SELECTOR, f"{LOSS} .tip").text


def smooth(browser: "Chrome", weight: float) -> None:
    """Move the slider as a reader does."""
    slider = "document.getElementById('smoothing')"
    browser.execute_script(f"{slider}.value = arguments[0]; {slider}.dispatchEvent(new Event('input'))", weight)


def click(browser: "Chrome", selector: str) -> None:
    from selenium.webdriver.common.by import By

    browser.find_element(By.CSS_SELECTOR, selector).click()


@pytest.fixture
def alone(browser: "Chrome", data_directory: Path, tmp_path: Path) -> RunFolder:
    """Open a page about one run, as a reader finds it."""
    run = make_run(tmp_path / "run", data_directory, encoding="rope")
    page, _ = write_report([run.directory], [], tmp_path / "out")
    browser.set_window_size(1200, 900)
    visit(browser, page)
    return run


def test_axes_show_steps_tokens_or_time(browser: "Chrome", alone: RunFolder) -> None:
    """A step has 256 tokens and takes 0.1 s. Every chart has the same axis."""
    for axis, expected in {"tokens": "tokens 5,120", "time": "seconds of training 2", "step": "step 20"}.items():
        click(browser, f"[data-axis={axis}]")
        assert read_end(browser).splitlines()[0] == expected
        name = expected.rpartition(" ")[0]
        texts = values(browser, "[...document.querySelectorAll('#charts svg')].map((one) => one.textContent)")
        assert len(texts) == 5, axis
        assert all(name in text for text in texts), axis


def test_smoothing_is_a_moving_average_without_bias(browser: "Chrome", alone: RunFolder) -> None:
    """Raw values are drawn behind it. Curves without noise are not smoothed."""
    losses = [json.loads(line)["loss"] for line in alone.metrics.read_text().splitlines()]
    for weight in (0.9, 0.0):
        smooth(browser, weight)
        total = average = 0.0
        for loss in losses:
            average = weight * average + (1 - weight) * loss
            total = weight * total + 1 - weight
        assert f"run {average / total:.4g}" in " ".join(read_end(browser).split())
        assert ("raw" in read_end(browser)) == bool(weight)
        assert values(browser, "document.querySelectorAll('#charts .raw').length") == (3 if weight else 0)


def test_log_scale_is_for_the_loss(browser: "Chrome", alone: RunFolder) -> None:
    """A logarithmic scale changes the loss and not the learning rate."""
    curves = "[...document.querySelectorAll('#charts .curve')].map((one) => one.getAttribute('d'))"
    before = values(browser, curves)
    click(browser, "#log")
    after = values(browser, curves)
    assert before[0] != after[0]
    assert before[1] == after[1]
    click(browser, "#log")
    assert values(browser, curves) == before


def test_drag_zooms_all_charts(browser: "Chrome", alone: RunFolder) -> None:
    """Dragging selects a range of steps. Double-clicking, Escape and the button show all steps again."""
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    def drag() -> None:
        svg = browser.find_element(By.CSS_SELECTOR, f"{LOSS} svg")
        quarter = svg.size["width"] // 4
        ActionChains(browser).move_to_element_with_offset(svg, -quarter, 0).click_and_hold().move_by_offset(
            2 * quarter, 0
        ).release().perform()

    whole = values(browser, TICKS)
    assert {"0", "20"} <= set(whole)
    resets = {
        "double click": lambda svg: ActionChains(browser).double_click(svg).perform(),
        "escape": lambda svg: svg.send_keys(Keys.ESCAPE),
        "button": lambda _: click(browser, "#reset"),
    }
    for name, reset in resets.items():
        drag()
        texts = values(
            browser,
            "[...document.querySelectorAll('#charts svg')].map((svg) => "
            "[...svg.querySelectorAll('text')].map((text) => text.textContent))",
        )
        for text in texts:
            assert "20" not in text[1:], name
            assert "10" in text, name
        assert browser.find_element(By.ID, "reset").is_displayed()
        reset(browser.find_element(By.CSS_SELECTOR, f"{LOSS} svg"))
        assert values(browser, TICKS) == whole, name
        assert not browser.find_element(By.ID, "reset").is_displayed(), name
    svg = browser.find_element(By.CSS_SELECTOR, f"{LOSS} svg")
    svg.send_keys("+")
    assert values(browser, TICKS) != whole
    browser.switch_to.active_element.send_keys("-")
    assert values(browser, TICKS) == whole


def test_values_are_shown_under_the_pointer(browser: "Chrome", alone: RunFolder) -> None:
    """Values are next to the pointer in one chart, and a line marks the step in all charts."""
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    ActionChains(browser).move_to_element(browser.find_element(By.CSS_SELECTOR, f"{LOSS} svg")).perform()
    tip = browser.find_element(By.CSS_SELECTOR, f"{LOSS} .tip")
    assert tip.text.startswith("step 10")
    assert "run · validation" in tip.text
    assert values(browser, "document.querySelectorAll('#charts .cross').length") == 5
    assert values(browser, "document.querySelectorAll('#charts .tip:not([hidden])').length") == 1


def test_curve_of_one_point_is_a_number(browser: "Chrome", data_directory: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", data_directory, steps=1, evaluated=1, encoding="rope")
    page, _ = write_report([run.directory], [], tmp_path / "out")
    visit(browser, page)
    assert values(browser, "document.querySelectorAll('#charts svg').length") == 0
    loss = json.loads(run.metrics.read_text())["loss"]
    assert f"{loss:.4g}" in values(browser, f"document.querySelector('{LOSS} .numbers').textContent")


def test_watched_page_reloads_until_the_run_has_finished(browser: "Chrome", data_directory: Path, tmp_path: Path) -> None:
    """The reader's settings stay."""
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    def until(what: Callable[["Chrome"], object]) -> None:
        """Repeats what fails because the page has just read itself again."""
        waiting = WebDriverWait(browser, 60, ignored_exceptions=(WebDriverException,))
        waiting.until(lambda driver: what(driver) in (None, True))

    def choose(act: Callable[["Chrome"], None], shown: str) -> None:
        """Act until a page loaded later still shows the choice: a page that is just being replaced may not have kept it."""

        def kept(driver: "Chrome") -> bool:
            if not values(driver, shown):
                act(driver)
                return False
            loaded_at = values(driver, "performance.timeOrigin")
            until(
                lambda driver: values(driver, f"performance.timeOrigin !== {loaded_at} && document.readyState === 'complete'")
            )
            return bool(values(driver, shown))

        until(kept)

    run = make_run(tmp_path / "run", data_directory, encoding="rope")
    lines = run.metrics.read_text().splitlines(keepends=True)
    run.metrics.write_text("".join(lines[:12]))
    pages = watch_report([run.directory], [], tmp_path / "out", 1)
    visit(browser, next(pages)[0])
    choose(lambda driver: smooth(driver, 0.9), "document.getElementById('smoothing').value === '0.9'")
    choose(
        lambda driver: click(driver, "[data-axis=tokens]"),
        "document.querySelector('[data-axis=tokens]').ariaPressed === 'true'",
    )
    choose(lambda driver: click(driver, "#configuration-1 summary"), "document.getElementById('configuration-1').open")
    until(lambda driver: driver.find_element(By.ID, "live").is_displayed())

    step = "document.querySelector('#now b')?.textContent"
    chosen = "[document.getElementById('smoothing').value, document.getElementById('configuration-1').open]"
    append_lines(run.metrics, map(json.loads, lines[12:15]))
    next(pages)
    until(lambda driver: values(driver, step) == "15")
    until(lambda driver: values(driver, chosen) == ["0.9", True])  # the page's script has run
    until(lambda driver: read_end(driver).startswith("tokens 3,840"))
    append_lines(run.metrics, map(json.loads, lines[15:]))
    list(pages)
    until(lambda driver: values(driver, step) == "20")
    until(lambda driver: not driver.find_element(By.ID, "live").is_displayed())
    until(lambda driver: values(driver, chosen) == ["0.9", True])
    assert [entry for entry in browser.get_log("browser") if entry["level"] not in ("INFO", "DEBUG")] == []


def test_page_is_readable_in_the_dark_and_on_a_telephone(browser: "Chrome", page: Path) -> None:
    """Text has a contrast of 4.5 to 1 in both color schemes, with nothing exceeding a telephone's width."""
    colors = "[getComputedStyle(document.body)[arguments[0]], getComputedStyle(document.querySelector('.quiet'))[arguments[0]]]"
    grounds = set()
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        ground = browser.execute_script(f"return {colors}", "backgroundColor")[0]
        texts = browser.execute_script(f"return {colors}", "color")
        assert min(contrast(text, ground) for text in texts) >= 4.5, scheme
        grounds.add(ground)
    assert len(grounds) == 2
    browser.set_window_size(500, 900)
    assert values(browser, "document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_page_of_a_suite_draws_a_chart_for_each_split(browser: "Chrome", tmp_path: Path) -> None:
    """Each chart's axis has 0 and 100%, and a title below. Without charts there is no error."""
    records = make_records(["flip_flop"], ["rope", "tape"], limited=())
    for name, written in {"empty.html": [], "suite.html": records}.items():
        write_page(make_suite(written, parse_plan("tiny", "copy", "rope", 1, None)), tmp_path / name)
        visit(browser, tmp_path / name)
        assert [entry for entry in browser.get_log("browser") if entry["level"] not in ("INFO", "DEBUG")] == [], name
    assert values(browser, "document.querySelectorAll('#charts .curve').length") == 3 * 2
    assert values(browser, "document.querySelectorAll('#charts .band').length") == 3 * 2
    texts = values(browser, "[...document.querySelectorAll('#charts figure:first-child text')].map((one) => one.textContent)")
    assert {"0", "100", FlipFlop.axis} <= set(texts)
