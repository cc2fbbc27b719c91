"""The adapters by name. Each module is imported with its first request: unused libraries cost nothing."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from agents.adapters.base import Adapter
from agents.exceptions import ConfigurationError

_PLACES = {
    "http": "agents.adapters.http:HttpAdapter",
    "inline": "agents.adapters.inline:InlineAdapter",
}


def names() -> tuple[str, ...]:
    """The names that a configuration may use."""
    return tuple(_PLACES)


@cache
def get(name: str) -> Adapter:
    """The adapter of this name, or `ConfigurationError` if there is none or its library is not installed."""
    if name not in _PLACES:
        raise ConfigurationError(f"There is no adapter {name!r}; known are {', '.join(_PLACES)}.")
    module, _, attribute = _PLACES[name].partition(":")
    try:
        adapter: Adapter = getattr(import_module(module), attribute)()
    except ImportError as error:
        raise ConfigurationError(
            f"The adapter {name!r} needs a package that is not installed: {error}"
        ) from error
    return adapter
