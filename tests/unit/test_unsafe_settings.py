"""Production does not start with unsafe settings, and reports all of them at once."""

from __future__ import annotations

import os
import runpy
import secrets
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from orchestrator.settings import base
from orchestrator.settings.unsafe import NEEDED, TABLE, faults
from tests import quick_python, servers

SAFE = {
    "DATABASE_URL": f"postgresql://app:{secrets.token_hex(12)}@db.internal/orchestrator",
    "REDIS_URL": f"redis://web:{secrets.token_hex(12)}@redis.internal:6379/0",
    "MONGODB_URI": f"mongodb://app:{secrets.token_hex(12)}@mongo.internal/orchestrator",
    "SECRET_KEY": secrets.token_urlsafe(60),
    "FIELD_ENCRYPTION_KEYS": f"2026:{secrets.token_hex(32)},2025:{secrets.token_hex(32)}",
    "ALLOWED_HOSTS": "orchestrator.example,.internal.example",
    "ORCHESTRATOR_PUBLIC_URL": "https://orchestrator.example",
}
#: Values that each row of the table refuses.
UNSAFE = {
    "a short or well-known key for sessions and links": [
        ("SECRET_KEY", "short"),
        ("SECRET_KEY", string.ascii_letters[:49]),
        ("SECRET_KEY", "ab" * 40),
        ("SECRET_KEY", "django-insecure-" + secrets.token_urlsafe(60)),
    ],
    "a key ring without keys, with short or repeated ones": [
        ("FIELD_ENCRYPTION_KEYS", "2026:" + "0" * 64),
        ("FIELD_ENCRYPTION_KEYS", "2026:not-hexadecimal"),
        ("FIELD_ENCRYPTION_KEYS", secrets.token_hex(32)),
        ("FIELD_ENCRYPTION_KEYS", " , "),
        ("FIELD_ENCRYPTION_KEYS", " "),
        ("FIELD_ENCRYPTION_KEYS", f"2026:{secrets.token_hex(8)}"),
        ("FIELD_ENCRYPTION_KEYS", f"2026:{secrets.token_hex(32)},2026:{secrets.token_hex(32)}"),
    ],
    "an answer to every host name": [("ALLOWED_HOSTS", "orchestrator.example, *")],
    "an address for callbacks without TLS": [
        ("ORCHESTRATOR_PUBLIC_URL", "http://orchestrator.example"),
        ("ORCHESTRATOR_PUBLIC_URL", "https://"),
        ("ORCHESTRATOR_PUBLIC_URL", "https://[orchestrator.example"),
    ],
    "passkeys for an address without TLS, or without their package": [
        ("ORCHESTRATOR_PASSKEY_ORIGIN", "http://console.example"),
        ("ORCHESTRATOR_PASSKEY_ORIGIN", "https://"),
        ("ORCHESTRATOR_PASSKEY_ORIGIN", "https://[console.example"),
        ("ORCHESTRATOR_PASSKEY_ORIGIN", "https://console.example/login"),
        ("ORCHESTRATOR_PASSKEY_ORIGIN", "https://user@console.example"),
    ],
    "pages of errors that show data": [("DEBUG", "1"), ("DJANGO_DEBUG", "True")],
    "embedded servers": [("ORCHESTRATOR_START_SERVICES", "1")],
    "PostgreSQL, Redis or MongoDB without a login or with a weak one": [
        ("DATABASE_URL", "postgresql://db.internal/orchestrator"),
        ("DATABASE_URL", "postgresql://app@db.internal/orchestrator"),
        ("DATABASE_URL", "postgres://postgres:postgres@db.internal/orchestrator"),
        ("DATABASE_URL", "postgresql://orchestrator:orchestrator@db.internal/orchestrator"),
        ("DATABASE_URL", "postgresql://app:aaaaaaaaaaaaaaaaaaaa@db.internal/orchestrator"),
        ("DATABASE_URL_SYSTEM", "postgresql://system@db.internal/orchestrator"),
        ("REDIS_URL", "redis://redis.internal:6379/0"),
        ("REDIS_URL", "redis://web:x@redis.internal:6379/0"),
        ("REDIS_URL", "redis://web:abcdefghijk@redis.internal:6379/0"),
        ("DATABASE_URL", "postgresql://scheduler:schedulerscheduler@db.internal/orchestrator"),
        ("CELERY_BROKER_URL", "rediss://redis.internal:6379/0"),
        ("CELERY_BROKER_URL", "redis://:password1234@redis.internal:6379/1"),
        ("MONGODB_URI", "mongodb://mongo.internal/orchestrator"),
        ("MONGODB_URI", "mongodb+srv://app:app@mongo.internal/orchestrator"),
        ("MONGODB_URI", "mongodb://app:pa%73%73@one.internal,two.internal/orchestrator"),
    ],
    "addresses inside our network that name no purpose, our own servers or this machine": [
        ("AGENT_EGRESS_ALLOW", "db.internal:5432"),
        ("AGENT_EGRESS_ALLOW", "agents=agents.internal:8080, redis.internal:6379"),
        ("AGENT_EGRESS_ALLOW", "MONGO.internal.:27017"),
        ("AGENT_EGRESS_ALLOW", "elsewhere.internal:5432"),
        ("AGENT_EGRESS_ALLOW", "localhost:8000"),
        ("AGENT_EGRESS_ALLOW", "127.0.0.2:8000"),
        ("AGENT_EGRESS_ALLOW", "[::1]:8000"),
        ("AGENT_EGRESS_ALLOW", "0.0.0.0:8000"),
        ("AGENT_EGRESS_ALLOW", "agents=db.internal:5432"),
        ("AGENT_EGRESS_ALLOW", "agents.internal:8080"),
        ("AGENT_EGRESS_ALLOW", "agents=agents.internal:8080,other.internal:8080"),
    ],
    "inline agents that are any function": [
        ("ORCHESTRATOR_INLINE_CALLABLES", "*"),
        ("ORCHESTRATOR_INLINE_CALLABLES", "agents.samples,newsroom.*"),
        ("ORCHESTRATOR_INLINE_CALLABLES", "os"),
        ("ORCHESTRATOR_INLINE_CALLABLES", "subprocess.run"),
        ("ORCHESTRATOR_INLINE_CALLABLES", "django."),
        ("ORCHESTRATOR_INLINE_CALLABLES", "tenants"),
        ("ORCHESTRATOR_INLINE_CALLABLES", "."),
    ],
    "Flower with a weak login or none": [
        ("FLOWER_BASIC_AUTH", "admin:admin"),
        ("FLOWER_UNAUTHENTICATED_API", "true"),
        ("FLOWER_BASIC_AUTH", f"admin:{secrets.token_hex(12)},guest:guest"),
    ],
}
ENTRIES = [(row, name, value) for row, refused in UNSAFE.items() for name, value in refused]


def test_safe_values_are_accepted() -> None:
    assert faults(SAFE) == []
    assert (
        faults(
            {
                **SAFE,
                "CELERY_BROKER_URL": "amqp://u:p@mq",
                "FLOWER_BASIC_AUTH": "a:" + "x" * 12,
                "DEBUG": "0",
                "AGENT_EGRESS_ALLOW": "agents=agents.internal:8080,webhooks=[fd00::5]:9000",
                "ORCHESTRATOR_INLINE_CALLABLES": "agents.samples,newsroom.agents",
            }
        )
        == []
    )


def test_flower_alone_needs_a_login() -> None:
    flower = ["celery", "-A", "orchestrator", "flower", "--port=5555"]

    (error,) = faults(SAFE, flower)

    assert error == "FLOWER_BASIC_AUTH: not set"
    assert faults({**SAFE, "FLOWER_BASIC_AUTH": "admin:" + "x" * 12}, flower) == []
    assert faults(SAFE, ["celery", "-A", "orchestrator", "worker"]) == []


@pytest.mark.parametrize(("row", "name", "value"), ENTRIES, ids=range(len(ENTRIES)))
def test_an_unsafe_value_is_refused_by_name(row: str, name: str, value: str) -> None:
    (error,) = faults({**SAFE, name: value})

    assert error.startswith(f"{name}: ")
    assert [error] == list(TABLE[row]({**SAFE, name: value}))


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("db.internal:6432", "the server of DATABASE_URL"),
        ("DB.internal.:6432", "the server of DATABASE_URL"),
        ("elsewhere.internal:5432", "the port of PostgreSQL"),
        ("localhost:8000", "this machine itself"),
        ("files.localhost:8000", "this machine itself"),
        ("127.0.0.2:8000", "this machine itself"),
        ("[::1]:8000", "this machine itself"),
        ("0.0.0.0:8000", "this machine itself"),
    ],
)
def test_our_servers_and_this_machine_stay_forbidden_even_when_allowed_on_purpose(
    host: str, reason: str
) -> None:
    server = f"postgresql://app:{secrets.token_hex(12)}@db.internal:6432/orchestrator"

    (error,) = faults({**SAFE, "DATABASE_URL": server, "AGENT_EGRESS_ALLOW": f"agents={host}"})

    assert reason in error


def test_every_row_of_the_table_of_unsafe_settings_is_tested_and_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")

    assert list(UNSAFE) == list(TABLE)
    assert [row for row in TABLE if f"| {row} |" not in text] == []


@pytest.mark.parametrize("row", UNSAFE)
def test_the_production_settings_cannot_be_loaded_with_an_unsafe_value(row: str) -> None:
    name, value = UNSAFE[row][0]

    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(ImproperlyConfigured, match=f"(?m)^  {name}: "),
    ):
        _load_production(patch, **{**SAFE, name: value})


def _load_production(patch: pytest.MonkeyPatch, **environment: str) -> dict[str, Any]:
    """Run the module as at the start of a process, but in this process, because that is cheaper."""
    for variable in [*os.environ]:
        patch.delenv(variable)
    for variable, text in environment.items():
        patch.setenv(variable, text)
    patch.setattr(sys, "argv", ["celery", "-A", "orchestrator", "worker"])
    return runpy.run_path(str(Path(__file__).parents[2] / "orchestrator" / "settings" / "production.py"))


def test_no_error_contains_a_secret() -> None:
    secrets_of = {
        "SECRET_KEY": "hunter2",
        "FIELD_ENCRYPTION_KEYS": "2026:hunter2",
        "FLOWER_BASIC_AUTH": "a:hunter2",
    }

    errors = faults({**SAFE, **secrets_of})

    assert len(errors) == 3
    assert "hunter2" not in " ".join(errors)


def test_an_image_is_built_without_secrets() -> None:
    assert faults({}, ["manage.py", "collectstatic", "--noinput"]) == []
    assert faults({}, ["manage.py", "migrate", "collectstatic"]) != []


def test_all_missing_settings_are_reported_at_once() -> None:
    assert [error.partition(":")[0] for error in faults({})] == list(NEEDED)


def _check(**changes: str) -> subprocess.CompletedProcess[str]:
    """Run Django's checks with the safe values of production, except for the changes."""
    environment = {
        "PATH": os.environ["PATH"],
        **servers.COMPILED,
        "DJANGO_SETTINGS_MODULE": "orchestrator.settings.production",
        **SAFE,
        **changes,
    }
    return quick_python.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        env=environment,
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.long  # starts Django again
def test_the_deployment_checks_of_django_pass_for_production_settings() -> None:
    check = _check()

    assert (check.returncode, check.stdout.strip()) == (
        0,
        "System check identified no issues (0 silenced).",
    ), check.stderr


def test_a_process_with_unsafe_values_does_not_start_and_lists_them() -> None:
    check = _check(ALLOWED_HOSTS="*", DEBUG="true")

    assert check.returncode != 0
    assert "ALLOWED_HOSTS: " in check.stderr
    assert "DEBUG: " in check.stderr


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({}, {"*": ["@related"]}),
        ({"writer": ["editor"]}, {"*": ["@related"], "writer": ["editor"]}),
        ({"*": ["*"]}, {"*": ["*"]}),
    ],
    ids=["nothing", "of one role", "of all"],
)
def test_in_production_agents_hand_work_to_the_roles_of_their_plan_unless_operators_say_otherwise(
    setting: dict[str, list[str]], expected: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "ORCHESTRATOR_HANDS_WORK_TO", setting)

    assert _load_production(monkeypatch, **SAFE)["ORCHESTRATOR_HANDS_WORK_TO"] == expected
