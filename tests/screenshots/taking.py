"""Opens every page in a real browser and takes pictures."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from tests.pages import BROWSERS
from tests.screenshots import walk
from tests.screenshots.world import Scene

LARGEST = 150_000  # bytes of a picture
QUALITIES = (75, 55, 35, 20)
#: Name of the look: width, height, colours.
LOOKS = {"light": (1280, 800, "light"), "dark": (1280, 800, "dark"), "phone": (390, 844, "light")}
NAVIGATION = {"console": "nav[aria-label='Pages'] a[href]", "admin": "a[href^='/admin/']"}
NO_PAGES = re.compile(r"/add/$|/logout/|/password_change/|/jsi18n/|/autocomplete/")
START = {"console": "/", "admin": "/admin/"}
OF_ONE = re.compile(r"/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}/(?:change/)?$")


@dataclass(slots=True)
class Shot:
    """One page: its address, its title, and the files of its pictures."""

    area: str
    address: str
    title: str
    files: list[Path] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The base name of its files. The id of a row is replaced by "one"."""
        path = OF_ONE.sub("/one/", urlsplit(self.address).path).strip("/")
        words = re.sub(r"[^a-z0-9]+", "-", path.removeprefix("admin/").lower()).strip("-")
        return f"{self.area}-{words if words and path != 'admin' else 'start'}"


def everything(scene: Scene, folder: Path, words: list[str], tell: Callable[[str], None]) -> list[Shot]:
    """Take pictures of every page of the navigation, and of the first row of each list, in every look."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise SystemExit("There is no Chromium on this machine.")
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        try:
            shots = [shot for area in START for shot in _pages(browser, scene, area)]
            selected = [shot for shot in shots if not words or any(word in shot.address for word in words)]
            for look in LOOKS:
                tell(f"Taking {len(selected)} pictures: {look}")
                _take(browser, scene, selected, look, folder)
        finally:
            browser.close()
    return selected


def tutorial(scene: Scene, folder: Path, tell: Callable[[str], None]) -> list[Path]:
    """Do the browser tutorial in a new tenant, and take a picture of each of its steps."""
    from playwright.sync_api import sync_playwright

    tell("Doing the tutorial in the browser")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    files: list[Path] = []
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = _signed_in(browser, scene, "console", "light", scene.newcomer)
        page.set_default_timeout(30_000)
        session = page.context.new_cdp_session(page)

        def take_picture(step: str) -> None:
            files.append(folder / f"{step}.webp")
            files[-1].write_bytes(_picture(session))

        walk.walk(page, take_picture)
        browser.close()
    return files


def _pages(browser: Any, scene: Scene, area: str) -> Iterator[Shot]:
    page = _signed_in(browser, scene, area, "light")
    page.goto(scene.web + START[area])
    links = page.locator(NAVIGATION[area]).evaluate_all(
        "links => links.map(link => link.getAttribute('href'))"
    )
    addresses = [START[area], *(_path(scene, link) for link in links)]
    seen: set[str] = set()
    for address in (each for each in addresses if each and _is_of(area, each)):
        answer = page.goto(scene.web + address)
        shot = Shot(area, address, _title(page))
        if answer is None or not answer.ok or shot.name in seen:
            continue
        seen.add(shot.name)
        yield shot
        if (one := _first_row(page, scene, area)) and page.goto(scene.web + one).ok:
            row = Shot(area, one, f"{shot.title}: one")
            if row.name not in seen:
                seen.add(row.name)
                yield row
    page.context.close()


def _take(browser: Any, scene: Scene, shots: list[Shot], look: str, folder: Path) -> None:
    for area in START:
        page = _signed_in(browser, scene, area, look)
        session = page.context.new_cdp_session(page)
        for shot in (each for each in shots if each.area == area):
            page.goto(scene.web + shot.address)
            page.evaluate("document.fonts.ready")
            file = folder / f"{shot.name}-{look}.webp"
            file.write_bytes(_picture(session))
            shot.files.append(file)
        page.context.close()


def _picture(session: Any) -> bytes:
    """Return a picture of the visible part of the page that is small enough."""
    picture = b""
    for quality in QUALITIES:
        answer = session.send("Page.captureScreenshot", {"format": "webp", "quality": quality})
        picture = base64.b64decode(answer["data"])
        if len(picture) < LARGEST:
            break
    return picture


def _signed_in(browser: Any, scene: Scene, area: str, look: str, login: tuple[str, str] | None = None) -> Any:
    width, height, colours = LOOKS[look]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=colours,
        reduced_motion="reduce",
        locale="en-GB",
        timezone_id="UTC",
    )
    page = context.new_page()
    name, password = login or (scene.superuser if area == "admin" else scene.member)
    page.goto(f"{scene.web}/login/")
    page.fill("input[name=username]", name)
    page.fill("input[name=password]", password)
    page.locator("input[name=password]").press("Enter")
    page.wait_for_url(lambda address: urlsplit(address).path != "/login/")
    return page


def _first_row(page: Any, scene: Scene, area: str) -> str:
    """Return the first link to a row in the content of the page."""
    links = page.locator("main a[href], #content a[href], #result_list a[href]").evaluate_all(
        "links => links.map(link => link.getAttribute('href'))"
    )
    paths = (_path(scene, urljoin(page.url, link)) for link in links)
    return next(
        (path for path in paths if path and _is_of(area, path) and OF_ONE.search(urlsplit(path).path)), ""
    )


def _path(scene: Scene, link: str) -> str:
    """Return the address within the site, or an empty text for an external one."""
    parts = urlsplit(urljoin(scene.web, link))
    inside = parts.netloc == urlsplit(scene.web).netloc
    return (parts.path + (f"?{parts.query}" if parts.query else "")) if inside else ""


def _is_of(area: str, address: str) -> bool:
    if address.startswith("/api/") or NO_PAGES.search(address):
        return False
    return address.startswith("/admin/") is (area == "admin")


def _title(page: Any) -> str:
    """Return the heading of the page, or its title."""
    heading = page.locator("h1, h2").first
    text = heading.inner_text() if heading.count() else page.title()
    return " ".join(text.split())[:80] or page.title()
