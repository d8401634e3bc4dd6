"""Takes report-curves.png and report-positions.png, light and dark, from the report of a run.

python docs/figures/screenshots.py runs/first_run_python

Needs Chromium and its driver, as the tests of the report do.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.expected_conditions import presence_of_element_located
from selenium.webdriver.support.ui import WebDriverWait

from megatape.lab.report.page import write_report

FOLDER = Path(__file__).parent
SECTIONS = {"curves": "report-curves", "positions": "report-positions"}
SCHEMES = {"light": "", "dark": "-dark"}
WIDTH = 1100
# Taller than the longest section, because a picture ends where the window does.
HEIGHT = 2400
PADDING = "12px"
TIMEOUT_SECONDS = 30


def open_browser() -> Chrome:
    """Start a headless Chromium."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    window = f"--window-size={WIDTH},{HEIGHT}"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", window):
        options.add_argument(argument)
    return Chrome(options=options, service=Service(shutil.which("chromedriver")))


def take(browser: Chrome, page: Path, scheme: str) -> None:
    """Save a picture of each section.

    Args:
        browser: Browser to open the page in.
        page: Page of a report.
        scheme: Color scheme that the page is asked for: light or dark.
    """
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(page.as_uri())
    for section, name in SECTIONS.items():
        wait = WebDriverWait(browser, TIMEOUT_SECONDS)
        wait.until(presence_of_element_located((By.CSS_SELECTOR, f"#{section} svg")))
        element = browser.find_element(By.ID, section)
        browser.execute_script("arguments[0].style.padding = arguments[1]", element, PADDING)
        element.screenshot(str(FOLDER / f"{name}{SCHEMES[scheme]}.png"))


def main() -> None:
    """Write the report of the run given on the command line, and take its pictures."""
    run = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        page, _ = write_report([run], [], Path(folder) / "report")
        for scheme in SCHEMES:
            take(browser, page, scheme)


if __name__ == "__main__":
    main()
