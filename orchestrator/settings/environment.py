"""Reads environment variables for the settings. A value that cannot be used is refused in one line that names the variable."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Any

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


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
