"""A real browser and a real server for it, for what only shows when a page is used: keys, focus, what is in sight.

Needs a Chromium on this machine: without one these tests are skipped.
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

LONGEST_SECONDS = 400.0  # of one test in a browser
PATIENCE_SECONDS = 15.0
#: Without `--disable-gpu` a process of its own draws, in software, what nobody sees.
ARGS = ("--no-sandbox", "--disable-gpu")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served() -> Iterator[str]:
    """The site on a port of this machine; its address."""
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
    """End every stream, as when a web process goes away; whether there were any."""
    carrying = hub.here()
    if not carrying.size():
        return False
    eventually(lambda: not carrying._new)
    for stream in carrying._streams():
        stream.unwelcome = True
    with suppress(OSError):  # it has just found out by itself
        if (hurry := carrying._waker) is not None:
            hurry.send(b"!")
    eventually(lambda: carrying.size() == 0)
    return True


def end_streams() -> None:
    """Pages of the console listen until their window is closed, and a server learns of that late. Here nobody needs them any more: their
    threads end, and with them their connections to the database.
    """
    if cut_streams():
        busy = ("event-hub", "process_request_thread")
        eventually(lambda: not any(name in each.name for each in threading.enumerate() for name in busy))


class _Kept:
    """The browser that the tests of one file share, and the driver that speaks to it. To start both takes longer than most of the tests."""

    driver: Any = None
    chromium: Any = None


@contextmanager
def browser() -> Iterator[Any]:
    """A Chromium without windows, or the test is skipped. What is still open at the end is closed; the browser itself stays for the next
    test of the file, until `end_browser`.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("there is no Chromium")
    too_long = threading.Timer(LONGEST_SECONDS, _kill_browsers)
    too_long.start()
    # The driver runs a loop in this thread, which Django takes for a reason not to touch the database. Nothing else runs in it.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    try:
        _Kept.driver = _Kept.driver or playwright.sync_playwright().start()
        if _Kept.chromium is None or not _Kept.chromium.is_connected():  # an earlier test may have ended it
            _Kept.chromium = _Kept.driver.chromium.launch(executable_path=program, args=list(ARGS))
        yield _Kept.chromium
    finally:
        too_long.cancel()
        if _Kept.chromium is not None:
            for context in _Kept.chromium.contexts:
                leave(context)


def end_browser() -> None:
    """End the browser, if there is one, and its driver."""
    if _Kept.driver is None:
        return
    with suppress(pytest.importorskip("playwright.sync_api").Error):  # it may have been ended already
        if _Kept.chromium is not None:
            _Kept.chromium.close()
    _Kept.driver.stop()
    _Kept.driver = _Kept.chromium = None
    os.environ.pop("DJANGO_ALLOW_ASYNC_UNSAFE", None)


def _kill_browsers() -> None:
    """What is waited for then fails. A call that a browser does not answer would hold the suite up for ever."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "chrom" in child.name():
                child.kill()


def wait_live(page: Any, selector: str, **options: Any) -> None:
    """Wait for what an event announces. A page without a stream asks every 5 seconds and says so; this one must have a stream."""
    page.wait_for_selector(selector, **options)
    page.wait_for_selector("body[data-following=open]")
    assert not page.is_visible("#connection")


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def leave(context: Any) -> None:
    """Close a context. Chromium may wait for ever for one whose page is on its way to another address; then it is ended itself."""
    error = pytest.importorskip("playwright.sync_api").Error
    too_long = threading.Timer(PATIENCE_SECONDS, _kill_browsers)
    too_long.start()
    with suppress(error):
        context.close()
    too_long.cancel()


def signed_in(user: User, address: str) -> dict[str, Any]:
    """The cookie with which the user is signed in there."""
    client = Client()
    client.force_login(user)
    return {"name": "sessionid", "value": client.cookies["sessionid"].value, "url": address}
