"""Logs: one line per event on stderr, JSON or, for people, text. LOG_FORMAT says which; unset, text goes to a terminal and JSON elsewhere.

Production writes JSON whatever stderr is, unless LOG_FORMAT says otherwise.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import structlog

from orchestrator import log_processors

LOG_LEVEL = os.environ.get("LOG_LEVEL", "INFO")


def log_format(environment: str | None = None, *, to_a_terminal: bool | None = None) -> str:
    """`json` or `console`: what LOG_FORMAT says, else `environment`, else by where stderr goes."""
    if to_a_terminal is None:
        to_a_terminal = sys.stderr.isatty()
    return os.environ.get("LOG_FORMAT") or environment or ("console" if to_a_terminal else "json")


_shared = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.stdlib.ExtraAdder(),
    log_processors.add_ids,
    log_processors.short_exceptions,
    log_processors.without_secrets,
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
        "django.request": {"level": "ERROR"},  # clients' mistakes are answered, not logged
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
    },
}
