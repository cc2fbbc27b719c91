"""The time that scripts in Redis read. It stands still until a test moves it, so no result depends on how fast the machine is."""

from __future__ import annotations

from types import ModuleType

import pytest

from tenants import redis
from tenants.redis import Script

_KEY = "test:clock"


class RedisClock:
    """The clock of the scripts that `stop` has changed. It begins at a fixed time."""

    def __init__(self) -> None:
        self.set(0.0)

    def set(self, milliseconds: float) -> None:
        """Set the time, in milliseconds since the clock began."""
        self._now = round(milliseconds)
        seconds, rest = divmod(self._now + 1_000_000_000, 1_000)
        redis.client().pipeline().delete(_KEY).rpush(_KEY, seconds, rest * 1_000).execute()

    def advance(self, seconds: float) -> None:
        self.set(self._now + seconds * 1_000)


def stop(monkeypatch: pytest.MonkeyPatch, module: ModuleType, *names: str) -> RedisClock:
    """Let the module's scripts of these names read the returned clock instead of the server's."""
    for name in names:
        script: Script = getattr(module, name)
        text = script.text.replace("redis.call('TIME')", f"redis.call('LRANGE', '{_KEY}', 0, -1)")
        assert text != script.text
        monkeypatch.setattr(module, name, Script(script.name, text))
    return RedisClock()
