"""Lua scripts: one file per verb, loaded once, called by their hash."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

FOLDER = Path(__file__).resolve().parent / "lua"


@dataclass(frozen=True, slots=True)
class Script:
    """One script. `run` sends its hash and, only when the server does not know it (any more), its text."""

    name: str
    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())

    @classmethod
    def load(cls, folder: Path, name: str) -> Script:
        return cls(name=name, text=(folder / f"{name}.lua").read_text(encoding="utf-8"))

    def run(
        self, client: redis.Redis, keys: Sequence[str], arguments: Sequence[str | int | float | bytes] = ()
    ) -> Any:
        """Execute in one round trip. Raises `redis.RedisError`."""
        try:
            return client.evalsha(self.sha, len(keys), *keys, *arguments)
        except redis.exceptions.NoScriptError:
            return client.eval(self.text, len(keys), *keys, *arguments)


TAKE = Script.load(FOLDER, "take")
GIVE_BACK = Script.load(FOLDER, "give_back")
PEEK = Script.load(FOLDER, "peek")
PLACE = Script.load(FOLDER, "place")
