"""The site on a port of this machine, and a browser for what only a browser shows: keys, focus, visibility.

Tests that need the browser are skipped without a Chromium.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

import psutil
import pytest
from django.contrib.auth.models import User
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import Client, override_settings

from tenants.events import hub
from tests.engine import eventually

LONGEST_SECONDS = 400.0  # for one test in a browser
PATIENCE_SECONDS = 15.0
#: Without `--disable-gpu` a process of its own draws, in software, what nobody sees. Without the limit each page starts a process, which
#: takes a seventh of the browser's time.
ARGS = ("--no-sandbox", "--disable-gpu", "--renderer-process-limit=1")
#: What the console of a browser says of a request that is refused, for `page_of`.
REFUSED = "the server responded with a status of 4"
#: The first has no windows, so tests in it need two thirds of the processor time.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Site(ThreadedWSGIServer):
    """The site, served in this process and on the test's database."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Quiet)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self._open: set[Any] = set()
        self._spare: list[list[BaseDatabaseWrapper]] = []  # the connections of threads that have ended
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    def serve(self) -> None:
        """Serve the site with the current settings. Browsers keep styles and scripts, and need not ask for them with each page."""
        with override_settings(WHITENOISE_MAX_AGE=3600):
            self.set_app(get_wsgi_application())

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Use the connections of a thread that has ended, because new ones cost PostgreSQL more than most pages."""
        for each in self._spare.pop() if self._spare else ():
            connections[each.alias] = each
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.discard(request)  # only now, because `end` closes the connections when nothing is open

    def _close_connections(self) -> None:
        spare = connections.all(initialized_only=True)
        for each in spare:
            del connections[each.alias]
            if not each.allow_thread_sharing:
                each.inc_thread_sharing()
        self._spare.append(spare)

    def end_requests(self) -> None:
        """Let requests and streams end, also those on connections that a browser keeps for later."""
        eventually(self._has_no_connection)
        end_streams()

    def _has_no_connection(self) -> bool:
        cut_streams()
        for connection in tuple(self._open):
            with suppress(OSError):  # it was closed meanwhile
                connection.shutdown(socket.SHUT_RD)
        return not self._open

    def end(self) -> None:
        self.shutdown()
        self.end_requests()
        self.server_close()
        self._thread.join()
        for each in chain.from_iterable(self._spare):
            each.close()


@contextmanager
def serve_site() -> Iterator[str]:
    """Serve the site in this process and on the test's database; yield its address."""
    site = _Site()
    site.serve()
    try:
        yield site.address
    finally:
        site.end()


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
    """The browser that consecutive tests share, and its driver. Starting them takes longer than most tests.

    Also what `page_of` uses, because a new context at a new address loads and compiles every script again.
    """

    driver: Any = None
    chromium: Any = None
    context: Any = None
    site: _Site | None = None


@contextmanager
def browser() -> Iterator[Any]:
    """Yield a headless Chromium, or skip the test. All contexts except that of `page_of` are closed at the end.

    The browser stays for the next test.
    """
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
                if context is not _Shared.context:
                    close(context)


def end_browser() -> None:
    """End the browser, its driver and the site of `page_of`."""
    if _Shared.site is not None:
        _Shared.site.end()
        _Shared.site = None
    if _Shared.driver is None:
        return
    with suppress(pytest.importorskip("playwright.sync_api").Error):  # it may have been ended already
        if _Shared.chromium is not None:
            _Shared.chromium.close()
    _Shared.driver.stop()
    _Shared.driver = _Shared.chromium = _Shared.context = None
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
    """Yield a page for a signed-in user. Errors in the console of any page fail the test, except those that contain one of `tolerated`.

    The page stays for the next test, so listeners and scripts that stay with a page are for another page of its context.
    """
    errors: list[str] = []

    def note_message(message: Any) -> None:
        if message.type == "error":
            errors.append(message.text)

    def note_error(error: Any) -> None:
        errors.append(str(error.error))

    with browser() as chromium, _shared_site() as address, _empty_page(chromium, address) as page:
        page.set_viewport_size({"width": width, "height": height})
        page.context.add_cookies([session_cookie(user, address)])
        page.context.on("console", note_message)
        page.context.on("weberror", note_error)
        yield page
        page.context.remove_listener("console", note_message)
        page.context.remove_listener("weberror", note_error)
    assert [error for error in errors if not any(text in error for text in tolerated)] == []


@contextmanager
def _shared_site() -> Iterator[str]:
    """Serve the site as `serve_site` does, but always at the same address."""
    site = _Shared.site = _Shared.site or _Site()
    site.serve()  # anew, because tests change settings
    try:
        yield site.address
    finally:
        site.end_requests()


@contextmanager
def _empty_page(chromium: Any, address: str) -> Iterator[Any]:
    """Yield a page without cookies, stored data and history of earlier tests. A test that fails leaves no page to the next one.

    A new page for each test would take as long as two more documents.
    """
    context, _Shared.context = _Shared.context, None
    if context is None or context not in chromium.contexts:
        context = chromium.new_context(base_url=address)
        context.new_page()
    context.set_offline(False)  # an earlier test may have failed while it was
    (page,) = context.pages
    page.emulate_media(color_scheme="light")
    session = context.new_cdp_session(page)
    session.send("Storage.clearDataForOrigin", {"origin": address, "storageTypes": "all"})  # includes cookies
    session.send("Page.resetNavigationHistory")
    session.detach()
    try:
        yield page
        for each in context.pages[1:]:
            close(each)
        if context.pages == [page]:
            if page.url.startswith(address):
                page.evaluate("sessionStorage.clear()")
            page.goto("about:blank")
            _Shared.context = context
    finally:
        if _Shared.context is None:
            close(context)


def shared_address() -> str:
    """Return the address of the site of `page_of`."""
    assert _Shared.site is not None
    return _Shared.site.address


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def close(opened: Any) -> None:
    """Close a context or a page. Kill the browser if it hangs, which happens while a page is navigating."""
    error = pytest.importorskip("playwright.sync_api").Error
    timer = threading.Timer(PATIENCE_SECONDS, _kill_browsers)
    timer.start()
    with suppress(error):
        opened.close()
    timer.cancel()


def session_cookie(user: User, address: str) -> dict[str, Any]:
    """Return the session cookie of the user for this address."""
    client = Client()
    client.force_login(user)
    return {"name": "sessionid", "value": client.cookies["sessionid"].value, "url": address}
