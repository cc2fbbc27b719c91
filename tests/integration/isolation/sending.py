"""Sends requests, and compares two responses as closely as an outsider could."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connections

from activities import budgets, wait_reasons
from agents import configuration, scheduler_settings
from tenants.context import APP, SYSTEM

IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}")
# Versions of the caller's own objects, which change between two requests, and the digests of bodies, which are compared themselves.
VERSIONS = re.compile(r'"version":\d+|^(W/)?"\d+(-[0-9a-f]+)?"$')
TIMES = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
WAITS = re.compile(r'(?<=_seconds":)\d+\.\d+')
SECRETS = re.compile(r"whsec_[A-Za-z0-9+/]+=*")  # generated for each request
# Headers that depend on the moment and not on the data. The length changes with the digits of a wait.
UNCOMPARED = re.compile(r"ratelimit|retry-after|x-request-id|date|content-length", re.IGNORECASE)
# Asks for a page where a page and a stream are possible.
ACCEPT = "application/json, */*;q=0.1"
# What an internal error would reveal.
INSIDES = re.compile(
    r"Traceback|psycopg|pymongo|django\.|\bSELECT .+ FROM\b|\bINSERT INTO\b|site-packages|\.py\b|line \d+, in |"
    r"/(home|root|tmp|usr|work|srv)/|orc_[A-Za-z0-9_-]{43}|PostgreSQL|row-level security"
)


@dataclass(frozen=True)
class Answer:
    status: int
    body: str
    headers: tuple[tuple[str, str], ...]
    statements: int

    @property
    def whole(self) -> str:
        return "\n".join((self.body, *map(str, self.headers)))

    def normalized(self, *words: str) -> tuple[Any, ...]:
        """Return the response with ids, times and the words of the request replaced by constants."""

        def replace_varying(text: str) -> str:
            for word in words:
                text = text.replace(word, "WORD")
            text = WAITS.sub("SECONDS", SECRETS.sub("SECRET", text))
            return VERSIONS.sub("VERSION", TIMES.sub("TIME", IDS.sub("ID", text)))

        headers = tuple((name, replace_varying(value)) for name, value in self.headers)
        return self.status, replace_varying(self.body), headers


def clear_caches() -> None:
    """Clear the caches of the process except that of tokens, so that both compared requests look everything up."""
    for cache in (wait_reasons._recent, budgets._averages):
        cache.clear()
    configuration.forget()
    scheduler_settings.forget()


def ask(client: Any, method: str, address: str, body: Any = None, **headers: str) -> Answer:
    sent = {"data": json.dumps(body), "content_type": "application/json"} if body is not None else {}
    with counted() as statements:
        answer = client.generic(method.upper(), address, headers={"Accept": ACCEPT, **headers}, **sent)
    content = b"".join(answer.streaming_content) if answer.streaming else answer.content
    compared = tuple(sorted((name, value) for name, value in answer.items() if not UNCOMPARED.search(name)))
    return Answer(answer.status_code, content.decode(errors="replace"), compared, len(statements))


@contextmanager
def counted() -> Iterator[list[str]]:
    """Collect the statements that go to PostgreSQL meanwhile."""
    statements: list[str] = []

    def count(execute: Any, sql: Any, *rest: Any) -> Any:
        statements.append(str(sql))
        return execute(sql, *rest)

    with ExitStack() as stack:
        for alias in (APP, SYSTEM):
            stack.enter_context(connections[alias].execute_wrapper(count))
        yield statements
