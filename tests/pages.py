"""The site on a port of this machine, and a browser for what only a browser shows: keys, focus, visibility.

Tests that need the browser are skipped without a Chromium.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest
from django.contrib.auth.models import User
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application
from django.test import Client

from tenants.events import hub
from tests.engine import eventually

LONGEST_SECONDS = 400.0  # for one test in a browser
PATIENCE_SECONDS = 15.0
#: Without `--disable-gpu` a process of its own draws, in software, what nobody sees.
ARGS = ("--no-sandbox", "--disable-gpu")
#: What the console of a browser says of a request that is refused, for `page_of`.
REFUSED = "the server responded with a status of 4"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serve_site() -> Iterator[str]:
    """Serve the site in this process and on the test's database; yield its address."""
    server = ThreadedWSGIServer(("127.0.0.1", 0), _Quiet)
    server.set_app(get_wsgi_application())
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        end_streams()
        server.server_close()
        thread.join()


def cut_streams() -> bool:
    """End every stream, as when a web process ends, and return whether there were any."""
    streams = hub.here()
    if not streams.size():
        return False
    eventually(lambda: not streams._new)
    for stream in streams._streams():
        stream.is_revoked = True
    with suppress(OSError):  # because the hub may have ended already
        if (waker := streams._waker) is not None:
            waker.send(b"!")
    eventually(lambda: streams.size() == 0)
    return True


def end_streams() -> None:
    """End the streams of pages that are closed, because a server notices that late. Their threads and database connections end as well."""
    if cut_streams():
        busy = ("event-hub", "process_request_thread")
        eventually(lambda: not any(name in each.name for each in threading.enumerate() for name in busy))


class _Shared:
    """The browser that consecutive tests share, and its driver. Starting them takes longer than most tests."""

    driver: Any = None
    chromium: Any = None


@contextmanager
def browser() -> Iterator[Any]:
    """Yield a headless Chromium, or skip the test. All contexts are closed at the end; the browser stays for the next test."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("there is no Chromium")
    timer = threading.Timer(LONGEST_SECONDS, _kill_browsers)
    timer.start()
    # The driver runs an event loop in this thread, for which Django would refuse to use the database.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    try:
        _Shared.driver = _Shared.driver or playwright.sync_playwright().start()
        if (
            _Shared.chromium is None or not _Shared.chromium.is_connected()
        ):  # an earlier test may have ended it
            _Shared.chromium = _Shared.driver.chromium.launch(executable_path=program, args=list(ARGS))
        yield _Shared.chromium
    finally:
        timer.cancel()
        if _Shared.chromium is not None:
            for context in _Shared.chromium.contexts:
                close_context(context)


def end_browser() -> None:
    """End the browser and its driver."""
    if _Shared.driver is None:
        return
    with suppress(pytest.importorskip("playwright.sync_api").Error):  # it may have been ended already
        if _Shared.chromium is not None:
            _Shared.chromium.close()
    _Shared.driver.stop()
    _Shared.driver = _Shared.chromium = None
    os.environ.pop("DJANGO_ALLOW_ASYNC_UNSAFE", None)


def _kill_browsers() -> None:
    """Let a call fail that a browser does not answer, because it would block the tests forever."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "chrom" in child.name():
                child.kill()


def wait_live(page: Any, selector: str, **options: Any) -> None:
    """Wait for what an event announces. A page without a stream asks every 5 seconds and says so; this one must have a stream."""
    page.wait_for_selector(selector, **options)
    page.wait_for_selector("body[data-following=open]")
    assert not page.is_visible("#connection")


@contextmanager
def page_of(user: User, *tolerated: str, width: int = 1200, height: int = 800) -> Iterator[Any]:
    """Yield a page for a signed-in user. Errors in its console fail the test, except those that contain one of `tolerated`."""
    errors: list[str] = []
    with browser() as chromium, serve_site() as address:
        context = chromium.new_context(base_url=address, viewport={"width": width, "height": height})
        context.add_cookies([session_cookie(user, address)])
        page = context.new_page()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
        close_context(context)
    assert [error for error in errors if not any(text in error for text in tolerated)] == []


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def close_context(context: Any) -> None:
    """Close a context. Kill the browser if it hangs, which happens while a page is navigating."""
    error = pytest.importorskip("playwright.sync_api").Error
    timer = threading.Timer(PATIENCE_SECONDS, _kill_browsers)
    timer.start()
    with suppress(error):
        context.close()
    timer.cancel()


def session_cookie(user: User, address: str) -> dict[str, Any]:
    """Return the session cookie of the user for this address."""
    client = Client()
    client.force_login(user)
    return {"name": "sessionid", "value": client.cookies["sessionid"].value, "url": address}
