"""Logging: one line per event on stderr, as JSON or text. LOG_FORMAT sets the format; the default is text on a terminal, else JSON.

Production writes JSON even on a terminal, unless LOG_FORMAT is set.

Every line, also of libraries, gets the current tenant, and secrets, prompts and other content of work are removed. An exception is logged
with its frames, its type and the first line of its message, because databases quote whole rows in the other lines.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from tenants import tracing
from tenants.current_tenant import current_tenant
from tenants.lazy_import import import_without

# Importing rich takes a tenth of the start of a process. structlog would only use it to display exceptions in a way that we do not use.
with import_without("rich"):
    import structlog
    from structlog import tracebacks

LONGEST_MESSAGE = 300  # characters of an exception's message
LONGEST_VALUE = 2_000
MOST_FRAMES = 30

#: Names of fields whose values are never logged.
SECRET = re.compile(
    r"secret|passw|authorization|credential|api_?key|cookie|(^|_)token$|^auth$", re.IGNORECASE
)
#: Names of fields with content of agents and people.
CONTENT = frozenset(
    {
        "prompt",
        "params",
        "input",
        "output",
        "content",
        "instructions",
        "payload",
        "body",
        "data",
        "kwargs",
        "args",
    }
)
#: Forms of secrets in any text: our tokens, callback tokens, keys of vendors and webhooks, credentials in headers and URLs.
FORMS = re.compile(
    r"orc_[\w-]{16,}"
    r"|\bW[\w-]{40,}:[\w-]{5,8}:[\w-]{40,}"
    r"|\bsk-[\w-]{16,}"
    r"|\bwhsec_[\w+/=-]{16,}"
    r"|\bxox[a-z]-[\w-]{10,}"
    r"|(?<=hooks\.slack\.com/services/)\S+"
    r"|(?i:(?<=bearer )|(?<=basic ))[\w.~+/=:-]{8,}"
    r"|(?<=://)[^\s/@:]*:[^\s/@]+(?=@)"
)

Line = dict[str, Any]


def add_ids(logger: Any, method: str, line: Line) -> Line:
    """Add the current tenant, unless the line has one, the trace, and the request of Django's own lines."""
    request = line.pop("request", None)
    if request is not None:
        line |= {"method": getattr(request, "method", None), "path": getattr(request, "path", None)}
        line.setdefault("request_id", getattr(request, "request_id", None))
    if traceparent := tracing.current_context().get("traceparent"):
        line["trace_id"] = traceparent.split("-")[1]
    if "tenant" not in line and (tenant_id := current_tenant()) is not None:
        line["tenant"] = str(tenant_id)
    return line


def without_secrets(logger: Any, method: str, line: Line) -> Line:
    """Remove secrets and content from the line."""
    for name, value in line.items():
        if not name.startswith("_"):
            line[name] = _redact(name, value)
    return line


def short_exceptions(logger: Any, method: str, line: Line) -> Line:
    """Replace `exc_info` with the text `exception`."""
    exception = line.pop("exc_info", None)
    if exception is True:
        exception = sys.exc_info()
    if isinstance(exception, BaseException):
        exception = (type(exception), exception, exception.__traceback__)
    if isinstance(exception, tuple) and exception[0] is not None:
        line["exception"] = "\n".join(
            _format_causes(tracebacks.extract(*exception, show_locals=False).stacks)
        )
    return line


def _format_causes(stacks: list[tracebacks.Stack]) -> list[str]:
    """Format the chain from the first cause to the last exception, in Python's order."""
    lines: list[str] = []
    for stack in reversed(stacks):
        lines += [
            f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}'
            for frame in stack.frames[-MOST_FRAMES:]
        ]
        message = stack.exc_value.partition("\n")[0][:LONGEST_MESSAGE]
        lines.append(f"{stack.exc_type}: {message}")
    return lines


def _redact(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if _is_secret(name):
        return "[secret]"
    if name in CONTENT:
        return f"[{len(value)} long]" if hasattr(value, "__len__") else "[not shown]"
    if isinstance(value, Mapping):
        return {str(key): _redact(str(key), member) for key, member in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_redact("", member) for member in value]
    text = FORMS.sub("[secret]", str(value))
    return (
        text if len(text) <= LONGEST_VALUE or name in ("event", "exception") else f"{text[:LONGEST_VALUE]}…"
    )


@lru_cache(maxsize=1_000)
def _is_secret(name: str) -> bool:
    return bool(SECRET.search(name))


def _choice(variable: str, default: str, choices: Sequence[str]) -> str:
    """Return the value of an environment variable, in the spelling of `choices`. Raises `ImproperlyConfigured` for any other."""
    text = os.environ.get(variable) or default
    for choice in choices:
        if choice.lower() == text.lower():
            return choice
    raise ImproperlyConfigured(f"{variable} must be one of {', '.join(choices)}, not {text[:40]!r}.")


LOG_LEVEL = _choice("LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"))


def log_format(environment: str | None = None, *, to_a_terminal: bool | None = None) -> str:
    """Return `json` or `console`: LOG_FORMAT, or `environment`, or by whether stderr is a terminal."""
    if to_a_terminal is None:
        to_a_terminal = sys.stderr.isatty()
    default = environment or ("console" if to_a_terminal else "json")
    return _choice("LOG_FORMAT", default, ("json", "console"))


_shared = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.stdlib.ExtraAdder(),
    add_ids,
    short_exceptions,
    without_secrets,
]

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "json": {
            "()": structlog.stdlib.ProcessorFormatter,
            "processors": [
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(default=str),
            ],
            "foreign_pre_chain": _shared,
        },
        "console": {
            "()": structlog.stdlib.ProcessorFormatter,
            "processors": [
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.dev.ConsoleRenderer(
                    colors=False, exception_formatter=structlog.dev.plain_traceback
                ),
            ],
            "foreign_pre_chain": _shared,
        },
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": log_format()}},
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
    "loggers": {
        "httpx2": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},
        "a2a": {"level": "WARNING"},
        "django.request": {"level": "ERROR"},  # errors of clients are not logged
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
    },
}
