"""Pictures of every page, to look at: light and dark, at a desk and on a phone.

`make screenshots` puts them into build/dashboard, and those that the documentation has into
docs/images/dashboard as well.
"""

import shutil
import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import expect

from edgemerge.server.auth import Caller
from edgemerge.server.schemas import ReviewRequest
from tests.browser.pumps import pumps
from tests.browser.visitor import DESKTOP, PHONE, Visitor
from tests.browser.workshop import FLEET, Workshop, workshop
from tests.services.chromium import chromium

ROOT = Path(__file__).parents[2]
OUT, DOCS = ROOT / "build" / "dashboard", ROOT / "docs" / "images" / "dashboard"
LOOKS = {"light": DESKTOP, "dark": DESKTOP, "phone-light": PHONE, "phone-dark": PHONE}
ALIKE = "source=well-pump-1&source=well-pump-2&source=well-pump-4&to=selected"
TALLEST, COLOURS = 1500, 256
END_OF_CARDS = """tallest => Math.ceil(12 + Math.max(
    ...[...document.querySelectorAll("main .panel, main article")]
        .filter(card => !card.parentElement.closest(".panel"))
        .map(card => card.getBoundingClientRect().bottom).filter(end => end + 12 <= tallest)))"""
BASE = f"/ui/fleets/{FLEET}"
PAGES = {
    "episodes": f"{BASE}/episodes",
    "fleet": BASE,
    "device": f"{BASE}/devices/hall-b-pump-2",
    "merge": f"{BASE}/merge",
    "preview": f"{BASE}/merge?{ALIKE}",
    "exchange": f"{BASE}/exchange",
    "log": f"{BASE}/log",
}


def ready(page: Any) -> None:
    """Wait until what the page fetches is there."""
    if page.locator("#matrix").count():
        expect(page.locator("#matrix")).not_to_have_attribute("aria-busy", "true")
    page.evaluate("document.fonts.ready.then(() => true)")
    page.wait_for_timeout(600)  # the chart and the first ages


def picture(page: Any, name: str) -> None:
    """Take a picture of a page, of a long one its first whole cards, in few colours."""
    size = page.viewport_size
    height = page.evaluate("document.documentElement.scrollHeight")
    if size != DESKTOP:
        height = min(height, size["height"])
    elif height > TALLEST:
        height = page.evaluate(END_OF_CARDS, TALLEST)
    page.set_viewport_size({**size, "height": height})
    with Image.open(BytesIO(page.screenshot())) as taken:
        small = taken.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(OUT / f"{name}.png", optimize=True)
    if (DOCS / f"{name}.png").exists():
        shutil.copy(OUT / f"{name}.png", DOCS)
    page.set_viewport_size(size)


def pictures(browser: Any, shop: Workshop, look: str) -> None:
    """Take all pictures in one look."""
    scheme = look.rpartition("-")[2]
    visitor = Visitor.at(
        browser, shop.here.url, viewport=LOOKS[look], color_scheme=scheme, device_scale_factor=1.5
    )
    visitor.go("/ui/sign-in")
    ready(visitor.page)
    picture(visitor.page, f"sign-in-{look}")
    visitor.sign_in(shop.here.token)
    for name, path in PAGES.items():
        visitor.go(path)
        ready(visitor.page)
        picture(visitor.page, f"{name}-{look}")
    visitor.must_be_quiet()
    visitor.context.close()


def see_past(shop: Workshop) -> None:
    """Acknowledge the episode of one pump, as somebody of the last shift did."""
    asked = ReviewRequest(decision="acknowledge", comment="bearing ordered, exchange on Thursday")
    shop.here.service.reviews.add(FLEET, "well-pump-1", asked, Caller("eve"))


def main() -> None:
    """Make a fleet, and take the pictures."""
    OUT.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium() as browser,
        workshop(f"sqlite:///{folder}/fleets.db") as shop,
    ):
        made = pumps(shop)
        see_past(shop)
        for look in LOOKS:
            for pump in made:
                pump.be_there()
            pictures(browser, shop, look)
    sys.stdout.write(f"{len(list(OUT.glob('*.png')))} pictures in {OUT.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
