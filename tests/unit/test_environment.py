"""How environment variables become settings, and how values that cannot be used are refused."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from orchestrator import command
from orchestrator.settings import logging as log_settings
from orchestrator.settings.environment import (
    Env,
    broker_parts,
    database_parts,
    mongodb_parts,
    redis_parts,
    web_parts,
)
from tests import quick_python

env = Env()

LOGIN = "user:password"


@pytest.mark.parametrize(
    ("cast", "text", "value"),
    [
        (float, "1e3", 1_000.0), (float, "0.5", 0.5), (float, " ", 7), (int, "5", 5), (int, "", 7), (bool, "true", True),
        (bool, "0", False), (list, " a, b ,, ", ["a", "b"]), (list, "", []), (dict, "a=1,b=2", {"a": "1", "b": "2"}),
        (json.loads, '{"a": 1}', {"a": 1}), (json.loads, "", 7), (None, "$ecret", "$ecret"), (None, "", ""),
    ],
)  # fmt: skip
def test_a_variable_is_read(cast: Any, text: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE", text)

    assert env.get_value("EXAMPLE", cast=cast, default=7) == value
    monkeypatch.delenv("EXAMPLE")
    assert env.get_value("EXAMPLE", cast=cast, default=7) == 7


@pytest.mark.parametrize(
    ("cast", "text"),
    [
        (float, "abc"), (float, "5s"), (float, "1,000"), (float, "nan"), (int, "1.5"), (int, "many"), (dict, "a"), (json.loads, "{"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_used_is_refused_with_its_variable(
    cast: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXAMPLE", text)

    with pytest.raises(ImproperlyConfigured, match=r"^EXAMPLE must be .*, not "):
        env.get_value("EXAMPLE", cast=cast, default=7)


def test_the_format_of_the_log_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOG_FORMAT", "JSON")
    assert log_settings.log_format() == "json"
    monkeypatch.setenv("LOG_FORMAT", "xml")

    with pytest.raises(ImproperlyConfigured, match="LOG_FORMAT must be one of json, console, not 'xml'"):
        log_settings.log_format()


def test_local_settings_exempt_no_server_of_a_replica_set(tmp_path: Path) -> None:
    process = quick_python.run(
        [sys.executable, "-c", "from orchestrator.settings import local; print(*local.ORCHESTRATOR_EGRESS_LOOPBACK_EXCEPT)"],
        env={
            **os.environ, "ORCHESTRATOR_HOME": str(tmp_path), "DATABASE_URL": "postgresql://a@127.0.0.1:15432/a",
            "REDIS_URL": "redis://127.0.0.1", "MONGODB_URI": "mongodb://127.0.0.1:27101,127.0.0.1:27102/a",
        },
    )  # fmt: skip

    assert process.returncode == 0, process.stderr
    assert {"15432", "6379", "27101", "27102"} <= set(process.stdout.split())


INVALID_URLS = [
        ("EMAIL_URL", "mail.example.org"), ("EMAIL_URL", "smtp://user:pa/ss@mail.example.org:25"), ("EMAIL_URL", "smtp://[mail:25"),
        ("DATABASE_URL", "postgresql://user:pa/ss@db:5432/a"), ("DATABASE_URL", "postgresql://db:54321a/a"), ("DATABASE_URL", "db"),
        ("DATABASE_URL_SYSTEM", "postgresql://db:99999/a"), ("DATABASE_URL_SYSTEM", "mysql://db/a"),
        ("REDIS_URL", "redis://:pa/ss@db:6379/0"), ("CELERY_BROKER_URL", "db/pa"), ("CELERY_BROKER_URL", "redis://db:6379/pa"),
        ("MONGODB_URI", "db/pa"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector/pa"),
]  # fmt: skip


@pytest.mark.parametrize(("variable", "url"), INVALID_URLS)
def test_an_invalid_url_is_refused_with_its_variable_and_without_its_text(
    variable: str, url: str, tmp_path: Path
) -> None:
    process = quick_python.run(
        [sys.executable, "manage.py", "check"],
        env={
            **os.environ, "ORCHESTRATOR_HOME": str(tmp_path), "DATABASE_URL": "postgresql://a@127.0.0.1:1/a",
            "REDIS_URL": "redis://127.0.0.1:1", "MONGODB_URI": "mongodb://127.0.0.1:1",
            "DJANGO_SETTINGS_MODULE": "orchestrator.settings.local", variable: url,
        },
    )  # fmt: skip

    (line,) = process.stderr.splitlines()
    assert process.returncode == 1
    assert line.startswith(f"{variable} is not a valid URL. It must look like ")
    assert "pa" not in line.replace("password", "")


@pytest.mark.parametrize(
    ("parts_of", "url"),
    [
        (database_parts, "postgresql://user@db:5432"), (redis_parts, "redis://db:99999"), (redis_parts, "redis://db:6379/name"),
        (broker_parts, "redis://db:port/0"), (broker_parts, "rediss://db/name"), (broker_parts, "amqp://db:99999//"),
        (mongodb_parts, "mongodb://"), (mongodb_parts, "mongodb://user@db:27017,:27018/a"), (mongodb_parts, "mongodb://db:a/a"),
        (web_parts, "https://"), (web_parts, "https:///path"), (web_parts, "http://db:port"),
    ],
)  # fmt: skip
def test_an_incomplete_or_invalid_url_has_no_parts(parts_of: Callable[[str], Any], url: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - `parse_url` expects no other
        parts_of(url)


@pytest.mark.parametrize(
    ("parts_of", "url"),
    [
        (database_parts, "postgresql://user@db/a"), (database_parts, "postgresql:///a"), (database_parts, "postgresql://?service=a"),
        (redis_parts, "redis://db"), (redis_parts, f"rediss://{LOGIN}@[::1]:6379/15"), (redis_parts, "unix:///tmp/redis.sock?db=1"),
        (broker_parts, f"amqp://{LOGIN}@db:5672//"), (broker_parts, "redis://127.0.0.1"),
        (mongodb_parts, "mongodb://a:1,b:2/a?replicaSet=r"), (mongodb_parts, f"mongodb+srv://{LOGIN}@cluster.example.org"),
        (web_parts, "http://127.0.0.1:4318"), (web_parts, "https://hooks.example.org/services/a"),
    ],
)  # fmt: skip
def test_a_valid_url_has_parts(parts_of: Callable[[str], Any], url: str) -> None:
    assert parts_of(url)


@pytest.mark.parametrize("text", ["models:8000/v1", "ftp://models.example.org"])
def test_the_address_of_a_web_server_needs_its_scheme(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE", text)

    with pytest.raises(
        ImproperlyConfigured, match=r"^EXAMPLE is not a valid URL\. It must look like https://"
    ):
        env.web_address("EXAMPLE")
    monkeypatch.setenv("EXAMPLE", "")
    assert env.web_address("EXAMPLE", "https://default.example.org") == ""
    monkeypatch.delenv("EXAMPLE")
    assert env.web_address("EXAMPLE", "https://default.example.org") == "https://default.example.org"


@pytest.mark.parametrize(
    "keys",
    ["pass", "pass:", ":pass", "new:pass,pass"],
    ids=["no name", "no key", "empty name", "second entry"],
)
def test_a_malformed_ring_of_keys_is_refused_without_its_text(
    keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXAMPLE_KEYS", keys)

    with pytest.raises(ImproperlyConfigured) as refused:
        env.key_ring("EXAMPLE_KEYS")

    assert str(refused.value).startswith("EXAMPLE_KEYS must be name:key, separated by commas, ")
    assert "pass" not in str(refused.value)


def test_a_ring_of_keys_is_read_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE_KEYS", "new:1f, old:2e")

    assert env.key_ring("EXAMPLE_KEYS") == ["new:1f", "old:2e"]
    monkeypatch.delenv("EXAMPLE_KEYS")
    assert env.key_ring("EXAMPLE_KEYS") == []


def test_an_argument_that_is_not_utf_8_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["manage.py", "create_token", "--tenant", "caf\udce9"])

    with pytest.raises(SystemExit) as ended:
        command.main()

    assert ended.value.code == 2
    assert capsys.readouterr().err == "The argument 'caf\\udce9' is not valid UTF-8.\n"
