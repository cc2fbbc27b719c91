"""The time that scripts in Redis read. It stands still until a test moves it, so no result depends on how fast the machine is."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

from activities.admission import scripts
from tenants import limiter, redis
from tenants.redis import Script

_KEY = "test:clock"


class RedisClock:
    """The clock of scripts that were changed to read it. It begins at a fixed time, or at `start` in seconds."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._start = round(start * 1_000)
        self.set(0.0)

    def set(self, milliseconds: float) -> None:
        """Set the time, in milliseconds since the clock began."""
        self._now = round(milliseconds)
        seconds, rest = divmod(self._start + self._now, 1_000)
        redis.client().pipeline().delete(_KEY).rpush(_KEY, seconds, rest * 1_000).execute()

    def advance(self, seconds: float) -> None:
        self.set(self._now + seconds * 1_000)


def stop(monkeypatch: pytest.MonkeyPatch, module: ModuleType, *names: str) -> RedisClock:
    """Let the module's scripts of these names read the returned clock instead of the server's."""
    for name in names:
        script: Script = getattr(module, name)
        monkeypatch.setattr(module, name, Script(script.name, _with_clock(script.text)))
    return RedisClock()


def stop_limiter(monkeypatch: pytest.MonkeyPatch) -> RedisClock:
    return stop(monkeypatch, limiter, "_TAKE", "_GIVE_BACK", "_PLACE")


@contextmanager
def admission_stopped() -> Iterator[RedisClock]:
    """Let the scripts of admission read the clock, which begins at the real time."""
    with admission_changed(_with_clock):
        yield RedisClock(time.time())


@contextmanager
def admission_changed(change: Callable[[str], str]) -> Iterator[None]:
    """Let the scripts of admission be `change` of their text. Other threads may run scripts at the beginning and the end."""
    source = scripts._source.__wrapped__  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts, "_source", lambda name: change(source(name)))
        patch.setattr(scripts.PassedSlot, "_is_known", False)
        scripts._sha.cache_clear()
        yield
    scripts._sha.cache_clear()  # after the texts are back, because a thread may have asked for a digest until now


def _with_clock(text: str) -> str:
    changed = re.sub(r"""redis\.call\(["']TIME["']\)""", f"redis.call('LRANGE', '{_KEY}', 0, -1)", text)
    assert changed != text
    return changed
