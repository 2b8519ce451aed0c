"""A browser for the tests of pages."""

import os
import shutil

import pytest

from support.browser import look

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = (
    *("--headless=new", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """One browser for all these tests, with a profile of its own; what it logs can be read."""
    from selenium import webdriver

    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip("no browser is installed; on Debian: apt-get install chromium chromium-driver")
    profile = tmp_path_factory.mktemp("browser")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for switch in (*SWITCHES, f"--user-data-dir={profile}", *(["--no-sandbox"] if os.geteuid() == 0 else [])):
        options.add_argument(switch)
    options.add_experimental_option("prefs", {"download.default_directory": str(profile / "downloads")})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        found.set_page_load_timeout(60)
        yield found
    finally:
        found.quit()


@pytest.fixture
def page(browser):
    """The browser with nothing open, at a desk's width and in daylight."""
    look(browser, "light", 1200)
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    return browser
