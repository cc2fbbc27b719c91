"""Reads environment variables for the settings. A value that cannot be used is refused in one line that names the variable."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured

_KINDS: dict[Any, str] = {
    int: "a whole number", float: "a number", json.loads: "JSON", dict: "name=value, separated by commas",
}  # fmt: skip


class Env(environ.Env):
    """django-environ's reader, without its surprises.

    Numbers are Python's: django-environ ignores letters, so that `1e3` is 13 and `1,000` is 1. Spaces around the entries of a list do not
    count. A value that begins with `$` is that value: django-environ takes it for the name of another variable, so that a secret which
    happens to begin with `$` is empty.
    """

    def get_value(
        self, var: str, cast: Any = None, default: Any = environ.Env.NOTSET, parse_default: bool = False
    ) -> Any:
        text = self.ENVIRON.get(var)
        if text is None or (cast in (int, float, json.loads) and not text.strip()):
            return default
        if cast is list:
            return [entry.strip() for entry in text.split(",") if entry.strip()]
        try:
            return _finite(text) if cast is float else self.parse_value(text, cast)
        except ValueError as error:
            raise ImproperlyConfigured(
                f"{var} must be {_KINDS.get(cast, 'valid')}, not {text[:40]!r}."
            ) from error

    def web_address(self, var: str, default: str = "") -> str:
        """Return the address of an HTTP server, which may be empty. Raises `ImproperlyConfigured`."""
        text: str = self(var, default=default)
        if text:
            parse_url(var, text, web_parts, schemes=("http", "https"), example="https://host:443")
        return text

    def key_ring(self, var: str) -> list[str]:
        """Return the entries of a ring of keys. Raises `ImproperlyConfigured` without their text, because it may be a key."""
        entries: list[str] = self.list(var, default=[])
        for number, entry in enumerate(entries, 1):
            name, _, key = entry.partition(":")
            if not (name and key):
                raise ImproperlyConfigured(
                    f"{var} must be name:key, separated by commas, with keys of `openssl rand -hex 32`; entry {number} is not."
                )
        return entries


def parse_url(
    variable: str, text: str, parse: Callable[[str], dict[str, Any]], *, schemes: Container[str], example: str
) -> dict[str, Any]:
    """Return what `parse` makes of a URL. Raises `ImproperlyConfigured` without the URL, because any part of it may be of a password."""
    if text.partition("://")[0] in schemes:
        with suppress(ValueError):
            return parse(text)
    raise ImproperlyConfigured(
        f"{variable} is not a valid URL. It must look like {example}, with special characters encoded (%40 is @)."
    )


def database_parts(text: str) -> dict[str, Any]:
    """Return Django's settings of a PostgreSQL server. Raises `ValueError`, also without the name of a database."""
    parts: dict[str, Any] = Env.db_url_config(text)
    if not (parts["NAME"] or "service" in parts.get("OPTIONS", {})):
        raise ValueError(text)
    return parts


def redis_parts(text: str) -> dict[str, Any]:
    """Return what can be checked without a client: the port, and the number of the database."""
    parts = urlsplit(text)
    return {"port": parts.port, "database": 0 if parts.scheme == "unix" else int(parts.path.strip("/") or 0)}


def broker_parts(text: str) -> dict[str, Any]:
    """Return the checked parts of the address of Redis or RabbitMQ."""
    return redis_parts(text) if text.startswith("redis") else {"port": urlsplit(text).port}


def mongodb_parts(text: str) -> dict[str, Any]:
    """Return the hosts and ports of a MongoDB server or a replica set."""
    hosts = [urlsplit(f"//{host}") for host in urlsplit(text).netloc.rpartition("@")[2].split(",")]
    if not all(host.hostname for host in hosts):
        raise ValueError(text)
    return {"hosts": [(host.hostname, host.port) for host in hosts]}


def web_parts(text: str) -> dict[str, Any]:
    """Return the host and port of an HTTP server."""
    parts = urlsplit(text)
    if not parts.hostname:
        raise ValueError(text)
    return {"host": parts.hostname, "port": parts.port}


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
