"""Files between the page that shows what is in them and the one that stores it: in Redis, for a quarter of an hour."""

from __future__ import annotations

import secrets
from typing import Any

import orjson

from pipelines import keys
from tenants.redis import client

SECONDS = 900


def keep(owner: str, name: str, raw: bytes) -> str:
    """Keep a file for its owner; the text by which they get it back."""
    handle = secrets.token_urlsafe(16)
    client().set(keys.file_of(owner, handle), orjson.dumps(name) + b"\n" + raw, ex=SECONDS)
    return handle


def kept(owner: str, handle: str) -> tuple[bytes, str] | None:
    """The file and its name, or None when its time is over or it is somebody else's."""
    found: Any = client().get(keys.file_of(owner, handle[:50]))
    if found is None:
        return None
    name, _, raw = found.partition(b"\n")
    return raw, orjson.loads(name)
