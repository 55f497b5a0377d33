"""The report as a reader's browser shows it: light and dark, on a desk and in a hand."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from runtime.bench.render.html import page
from tests.bench.render.chromium import Page
from tests.bench.render.conftest import Reports

SCREENS = Path(__file__).parents[3] / "out" / "screens"
WIDTHS_PX = {"desktop": 1100, "phone": 390}
LEAST_CONTRAST = 4.5
"""WCAG 2 AA, text of any size."""

LOOK = (Path(__file__).parent / "look.js").read_text("utf-8")
"""Measures what is shown; gives one object."""


async def look(browser: Page, report: dict[str, Any], name: str, scheme: str, device: str) -> Any:
    """Open the report as that reader has it; keep a picture, give what was measured."""
    SCREENS.mkdir(parents=True, exist_ok=True)
    path = SCREENS / f"{name}.html"
    path.write_text(page(report), "utf-8")
    await browser.look(scheme=scheme, width_px=WIDTHS_PX[device])
    await browser.open(path)
    await browser.screenshot(SCREENS / f"{name}-{scheme}-{device}.png")
    asked = [url for url in browser.requested() if url != path.as_uri()]
    assert asked == [], "the page asked for something beside itself"
    return await browser.evaluate(LOOK)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", WIDTHS_PX)
async def test_page_can_be_read(browser: Page, named: Reports, scheme: str, device: str) -> None:
    """No sideways scrolling, no text too faint or too small or cut off, every chart there."""
    for name, charts in (("full", 17), ("sweep", 6), ("plain", 6), ("long", 6)):
        told = await look(browser, named(name), name, scheme, device)
        assert told["scrollWidth"] <= WIDTHS_PX[device], name
        assert len(told["charts"]) == charts, name
        for chart in told["charts"]:
            where = f"{name}: {chart['label']}"
            assert chart["width"] >= 300, where
            assert chart["height"] >= 150, where
            assert chart["texts"] >= 4, where
            assert chart["outside"] == [], f"{where}: text is cut off"
            assert chart["overlapping"] == [], f"{where}: labels overlap"
            assert chart["smallest"] >= 10.5, f"{where}: tiny text"
        assert [one for one in told["faint"] if one["contrast"] < LEAST_CONTRAST] == [], name
        assert told["texts"] > 50, name


async def test_dark_is_dark_and_light_is_light(browser: Page, plain: dict[str, Any]) -> None:
    """The page follows the reader's system, without a switch."""
    light = await look(browser, plain, "plain", "light", "desktop")
    dark = await look(browser, plain, "plain", "dark", "desktop")
    assert light["ground"] > 0.9
    assert dark["ground"] < 0.1


@pytest.mark.parametrize("name", ["failed", "single", "lopsided"])
async def test_reports_with_little_in_them_can_be_read(
    browser: Page, named: Reports, name: str
) -> None:
    """Where there is nothing to draw a sentence stands; nothing from outside is markup."""
    told = await look(browser, named(name), name, "light", "phone")
    assert told["scrollWidth"] <= WIDTHS_PX["phone"]
    assert told["scripts"] == 0
    assert told["images"] == 0
    assert told["title"] == "turnback benchmark: simulated"
    assert all(chart["overlapping"] == chart["outside"] == [] for chart in told["charts"])
    assert len(told["charts"]) == {"failed": 0, "single": 6, "lopsided": 4}[name]


async def test_page_can_be_heard(browser: Page, full: dict[str, Any]) -> None:
    """Headings go down a step at a time, charts have labels, tables scopes and names."""
    told = await look(browser, full, "full", "light", "desktop")
    levels = told["headings"]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))
    assert all(len(chart["label"]) > 30 for chart in told["charts"])
    assert told["tables"] > 20
    assert told["unscoped"] == 0
    assert told["unnamed"] == 0
    assert told["repeatedIds"] == []
    assert told["brokenReferences"] == []
