"""The inline adapter: calls an agent that is a Python function of this installation, inside the worker.

Tenants may enter any endpoint, so only functions below the prefixes that operators have listed are
imported. A function cannot be interrupted from outside; it must keep to its timeout.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from importlib import import_module
from inspect import getfullargspec, isfunction
from typing import Any

from django.conf import settings

from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output, RunLink
from agents.exceptions import ConfigurationError
from agents.response_parser import InvalidAnswer, read_completed

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ENDPOINT = re.compile(rf"{_NAME}(?:\.{_NAME})*:[A-Za-z][A-Za-z0-9_]*")
_ANSWER_KEYS = frozenset({"output", "usage", "session_id"})


class InlineAdapter:
    def run(self, request: AgentRequest, *, link: RunLink) -> AgentResult:
        """Call the function with the request, and with the link if it has a parameter `link`. Any of the short result forms is accepted."""
        function = _resolve(request.settings.endpoint or "", tuple(settings.ORCHESTRATOR_INLINE_CALLABLES))
        answer = function(request, link=link) if _takes_link(function) else function(request)
        if isinstance(answer, (Completed, Accepted)):
            return answer
        return _read_result(answer)


@lru_cache(maxsize=1024)
def _takes_link(function: Callable[..., Any]) -> bool:
    signature = getfullargspec(function)
    return "link" in (*signature.args, *signature.kwonlyargs)


def _read_result(answer: Any) -> Completed:
    if answer is None:
        return Completed(Output())
    if isinstance(answer, str):
        return Completed(Output(content=answer))
    if isinstance(answer, Output):
        return Completed(answer)
    if isinstance(answer, Mapping):
        # Data may have a key "output" too, so only a dictionary without any other keys is a whole answer.
        if isinstance(answer.get("output"), Mapping) and answer.keys() <= _ANSWER_KEYS:
            return read_completed(answer)
        return Completed(Output(data=dict(answer)))
    raise InvalidAnswer(("", f"a function must not return a {type(answer).__name__}"))


def error_of_endpoint(endpoint: str, prefixes: Iterable[str]) -> str | None:
    """Return why this cannot be run as a function of this installation, or None if it can."""
    if not _ENDPOINT.fullmatch(endpoint):
        return "must be of the form package.module:function"
    dotted = endpoint.replace(":", ".")
    if not any(dotted.startswith(prefix.rstrip(".") + ".") or dotted == prefix for prefix in prefixes):
        return "is not among the functions that may be run inline"
    return None


@lru_cache(maxsize=1024)
def _resolve(endpoint: str, prefixes: tuple[str, ...]) -> Callable[..., Any]:
    """Import the function. Failures are not cached, so a repaired configuration works at once."""
    if reason := error_of_endpoint(endpoint, prefixes):
        raise ConfigurationError(f"The endpoint {endpoint!r} of an inline agent {reason}.")
    module_name, _, function_name = endpoint.partition(":")
    try:
        function = getattr(import_module(module_name), function_name, None)
    except ImportError as error:
        raise ConfigurationError(f"{module_name} cannot be imported: {error}") from error
    # Only functions that the module itself defines, because its imports could bypass the list of prefixes.
    if not isfunction(function) or function.__module__ != module_name:
        raise ConfigurationError(f"{endpoint} is not a function of that module.")
    return function
