"""The adapters by name. Each module is imported with its first request: unused libraries cost nothing."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from agents.adapters.base import Adapter
from agents.exceptions import ConfigurationError

_PLACES = {
    "cli": "agents.adapters.cli:CliAdapter",
    "http": "agents.adapters.http:HttpAdapter",
    "inline": "agents.adapters.inline:InlineAdapter",
    "a2a": "agents.adapters.a2a:A2AAdapter",
    "anthropic": "agents.adapters.anthropic:AnthropicAdapter",
    "openai": "agents.adapters.openai:OpenAIAdapter",
    "batch": "agents.adapters.batch:BatchAdapter",
}

#: What has to be installed for those that use a vendor's library.
_EXTRAS = {"a2a": "a2a", "anthropic": "llm", "openai": "llm", "batch": "llm"}


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
        extra = _EXTRAS.get(name)
        how = f" Install it with: pip install orchestrator[{extra}]" if extra else ""
        raise ConfigurationError(
            f"The adapter {name!r} needs a package that is not installed: {error}.{how}"
        ) from error
    return adapter
