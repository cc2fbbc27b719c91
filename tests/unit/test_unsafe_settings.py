"""Production does not start on values that would hurt, and says all that is wrong at once."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.settings.unsafe import NEEDED, faults

SAFE = {
    "DATABASE_URL": "postgresql://app:secret@db.internal/orchestrator",
    "REDIS_URL": "redis://web:secret@redis.internal:6379/0",
    "MONGODB_URI": "mongodb://app:secret@mongo.internal/orchestrator",
    "SECRET_KEY": secrets.token_urlsafe(60),
    "FIELD_ENCRYPTION_KEYS": f"2026:{secrets.token_hex(32)},2025:{secrets.token_hex(32)}",
    "ALLOWED_HOSTS": "orchestrator.example,.internal.example",
    "ORCHESTRATOR_PUBLIC_URL": "https://orchestrator.example",
}
UNSAFE = [
    ("SECRET_KEY", "short"),
    ("SECRET_KEY", "ab" * 40),
    ("SECRET_KEY", "django-insecure-" + secrets.token_urlsafe(60)),
    ("FIELD_ENCRYPTION_KEYS", "2026:" + "0" * 64),
    ("FIELD_ENCRYPTION_KEYS", "2026:not-hexadecimal"),
    ("FIELD_ENCRYPTION_KEYS", secrets.token_hex(32)),
    ("ALLOWED_HOSTS", "orchestrator.example, *"),
    ("ORCHESTRATOR_PUBLIC_URL", "http://orchestrator.example"),
    ("ORCHESTRATOR_PUBLIC_URL", "https://"),
    ("DEBUG", "1"),
    ("DJANGO_DEBUG", "True"),
    ("ORCHESTRATOR_START_SERVICES", "1"),
    ("REDIS_URL", "redis://redis.internal:6379/0"),
    ("CELERY_BROKER_URL", "rediss://redis.internal:6379/0"),
    ("FLOWER_BASIC_AUTH", "admin:admin"),
    ("FLOWER_UNAUTHENTICATED_API", "true"),
    ("FLOWER_BASIC_AUTH", f"admin:{secrets.token_hex(12)},guest:guest"),
]


def test_safe_values_are_accepted() -> None:
    assert faults(SAFE) == []
    assert (
        faults(
            {**SAFE, "CELERY_BROKER_URL": "amqp://u:p@mq", "FLOWER_BASIC_AUTH": "a:" + "x" * 12, "DEBUG": "0"}
        )
        == []
    )


def test_flower_alone_needs_a_login() -> None:
    flower = ["celery", "-A", "orchestrator", "flower", "--port=5555"]

    (fault,) = faults(SAFE, flower)

    assert fault == "FLOWER_BASIC_AUTH: not set"
    assert faults({**SAFE, "FLOWER_BASIC_AUTH": "admin:" + "x" * 12}, flower) == []
    assert faults(SAFE, ["celery", "-A", "orchestrator", "worker"]) == []


@pytest.mark.parametrize(("name", "value"), UNSAFE, ids=range(len(UNSAFE)))
def test_an_unsafe_value_is_refused_by_name(name: str, value: str) -> None:
    (fault,) = faults({**SAFE, name: value})

    assert fault.startswith(f"{name}: ")


def test_no_fault_shows_a_secret() -> None:
    told = " ".join(
        faults(
            {
                **SAFE,
                "SECRET_KEY": "hunter2",
                "FIELD_ENCRYPTION_KEYS": "2026:hunter2",
                "FLOWER_BASIC_AUTH": "a:hunter2",
            }
        )
    )

    assert "hunter2" not in told


def test_an_image_is_built_without_secrets() -> None:
    assert faults({}, ["manage.py", "collectstatic", "--noinput"]) == []
    assert faults({}, ["manage.py", "migrate", "collectstatic"]) != []


def test_everything_that_is_missing_is_named_at_once() -> None:
    assert [fault.partition(":")[0] for fault in faults({})] == list(NEEDED)


def _check(**changes: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        **SAFE,
        "DJANGO_SETTINGS_MODULE": "orchestrator.settings.production",
        **changes,
    }
    return subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.long  # starts Django anew
def test_django_has_nothing_to_say_about_the_settings_of_production() -> None:
    done = _check()

    assert (done.returncode, done.stdout.strip()) == (0, "System check identified no issues (0 silenced)."), (
        done.stderr
    )


def test_a_process_with_unsafe_values_does_not_start_and_lists_them() -> None:
    done = _check(ALLOWED_HOSTS="*", DEBUG="true")

    assert done.returncode != 0
    assert "ALLOWED_HOSTS: " in done.stderr
    assert "DEBUG: " in done.stderr
