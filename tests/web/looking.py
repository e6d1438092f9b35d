"""Looking at pages in a real browser: what the browser tests share."""

from __future__ import annotations

import os
import re
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

DESKTOP, PHONE = (1280, 900), (390, 844)
TABS = ("", "/report", "/stacks", "/nccl", "/flamegraph")
SCREENSHOTS = os.environ.get("HANGSCOPE_SCREENSHOTS")  # the folder


def graph_of(page: Page) -> Locator:
    """The flame graph, once it is drawn."""
    expect(page.locator("#flamegraph[data-ready]")).to_be_attached()
    return page.get_by_role("tree")


def keep_what_is_shown(page: Page) -> None:
    """What the page shows for a moment alone stays, so that it is seen on a busy machine too."""
    page.evaluate("window.setTimeout = () => 0")


def frame(page: Page, name: str) -> Locator:
    """A frame of the flame graph by its function."""
    return page.get_by_role("treeitem", name=re.compile(rf"^{re.escape(name)}, "))


def width(locator: Locator) -> float:
    box = locator.bounding_box()
    assert box is not None
    return box["width"]


def inspect(page: Page, axe: str, name: str) -> list[str]:
    """What is wrong with a page in light and in dark; a screenshot of each as `name`, where a person wants them.

    `axe` is axe-core; what it calls serious or critical is wrong, and so is a page wider than the screen.
    """
    wrong = []
    if page.evaluate("document.documentElement.scrollWidth - innerWidth") > 0:
        wrong.append(f"{name}: wider than the screen")
    page.evaluate(axe)
    for scheme, options in (("light", "{}"), ("dark", "{runOnly: ['color-contrast']}")):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        if SCREENSHOTS:
            page.screenshot(path=Path(SCREENSHOTS, f"{name}-{scheme}.png"), full_page=True)
        found = page.evaluate(f"async () => (await axe.run(document, {options})).violations")
        wrong.extend(
            f"{name} {scheme}: {one['id']}: {[node['html'][:200] for node in one['nodes'][:3]]}"
            for one in found
            if one["impact"] in ("serious", "critical")
        )
    return wrong
