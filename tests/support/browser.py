"""What tests of pages do with a browser: give it a size and a scheme, read tables, and look for errors."""

import json


def look(browser, scheme: str, width: int) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def cells(browser, table: str) -> list[list[str]]:
    """The texts of a table, row by row."""
    rows = "return [...document.querySelector(arguments[0]).rows]"
    return browser.execute_script(f"{rows}.map(row => [...row.cells].map(cell => cell.textContent.trim()))", table)


def assert_nothing_went_wrong(browser, origin: str) -> None:
    """No message of error in the console, no request that failed, and none to anywhere else."""
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    for entry in browser.get_log("performance"):
        event = json.loads(entry["message"])["message"]
        if event["method"] == "Network.requestWillBeSent":
            assert event["params"]["request"]["url"].startswith((origin, "data:", "blob:", "about:"))
        assert event["method"] != "Network.loadingFailed" or event["params"].get("canceled"), event
        if event["method"] == "Network.responseReceived":
            assert event["params"]["response"]["status"] < 400, event
