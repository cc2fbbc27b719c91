"""What production refuses to start with, found before anything else is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from orchestrator.flower_auth import is_starting

NEEDED = (
    "DATABASE_URL",
    "REDIS_URL",
    "MONGODB_URI",
    "SECRET_KEY",
    "FIELD_ENCRYPTION_KEYS",
    "ALLOWED_HOSTS",
    "ORCHESTRATOR_PUBLIC_URL",
)
SEALING = "FIELD_ENCRYPTION_KEYS"  # opens what tenants have entrusted to us: for who calls, and who takes credentials in
OF_FLOWER = ("REDIS_URL", "FLOWER_BASIC_AUTH")  # it knows messages and workers, no rows
SECRET_LENGTH, SECRET_VARIETY = 50, 12  # characters, and different ones among them
PASSWORD_LENGTH = 12
KEY_VARIETY = 6  # different digits; a random key has nearly all sixteen
BUILDS = ("collectstatic",)  # the command of the image's build: it serves nobody and reaches no server
_ON = frozenset({"1", "true", "t", "yes", "y", "on"})

Environment = Mapping[str, str]


def faults(environment: Environment, command: Sequence[str] = ()) -> list[str]:
    """Every fault at once, each beginning with the name of its variable; none when production may start.

    `command` is the command line of the process: Flower needs something that the others do not, and an image is built without secrets.
    """
    if tuple(command[1:2]) == BUILDS:
        return []
    needed = needed_by(command)
    missing = [f"{name}: not set" for name in needed if not environment.get(name)]
    return [*missing, *(fault for check in _CHECKS for fault in check(environment))]


def needed_by(command: Sequence[str]) -> tuple[str, ...]:
    """The variables that a process of this command line cannot do without. What it does not need, it should not be given."""
    if is_starting(command):
        return OF_FLOWER
    if "beat" in command[1:] or "migrate" in command[1:3]:
        return tuple(name for name in NEEDED if name != SEALING)
    return NEEDED


def _secret_key(environment: Environment) -> Iterator[str]:
    key = environment.get("SECRET_KEY", "")
    if not key:
        return
    if len(key) < SECRET_LENGTH or len(set(key)) < SECRET_VARIETY:
        yield f"SECRET_KEY: too easily guessed, use at least {SECRET_LENGTH} random characters"
    elif "insecure" in key.lower():
        yield "SECRET_KEY: calls itself insecure, make one of your own"


def _key_ring(environment: Environment) -> Iterator[str]:
    entries = [
        entry.strip() for entry in environment.get("FIELD_ENCRYPTION_KEYS", "").split(",") if entry.strip()
    ]
    for entry in entries:
        name, _, key = entry.partition(":")
        if not re.fullmatch(r"[0-9a-fA-F]{64}", key):
            yield f"FIELD_ENCRYPTION_KEYS: {name!r} is not followed by 64 hexadecimal digits, as in `name:<openssl rand -hex 32>`"
        elif len(set(key.lower())) < KEY_VARIETY:
            yield f"FIELD_ENCRYPTION_KEYS: {name!r} is too easily guessed, make it with `openssl rand -hex 32`"


def _hosts(environment: Environment) -> Iterator[str]:
    hosts = [host.strip() for host in environment.get("ALLOWED_HOSTS", "").split(",")]
    if "*" in hosts:
        yield "ALLOWED_HOSTS: * answers to every name, which lets others choose the links in e-mails; name the hosts"


def _public_url(environment: Environment) -> Iterator[str]:
    url = environment.get("ORCHESTRATOR_PUBLIC_URL", "")
    if url and (urlsplit(url).scheme != "https" or not urlsplit(url).hostname):
        yield "ORCHESTRATOR_PUBLIC_URL: must begin with https://, since agents send their tokens there"


def _debug(environment: Environment) -> Iterator[str]:
    for name in ("DEBUG", "DJANGO_DEBUG"):
        if environment.get(name, "").lower() in _ON:
            yield f"{name}: pages of errors would show settings and data; unset it"


def _embedded_servers(environment: Environment) -> Iterator[str]:
    if environment.get("ORCHESTRATOR_START_SERVICES") == "1":
        yield "ORCHESTRATOR_START_SERVICES: embedded servers are for one machine and its owner; unset it"


def _redis(environment: Environment) -> Iterator[str]:
    for name in ("REDIS_URL", "CELERY_BROKER_URL"):
        url = environment.get(name, "")
        if url.startswith(("redis://", "rediss://")) and not urlsplit(url).password:
            yield f"{name}: has no password, and whoever can write messages can make workers look at activities"


def _flower(environment: Environment) -> Iterator[str]:
    logins = environment.get("FLOWER_BASIC_AUTH", "")
    weak = [login for login in logins.split(",") if login and len(login.partition(":")[2]) < PASSWORD_LENGTH]
    if weak:
        yield f"FLOWER_BASIC_AUTH: a password has fewer than {PASSWORD_LENGTH} characters (user:password, ...)"
    if environment.get("FLOWER_UNAUTHENTICATED_API", "").lower() in _ON:
        yield "FLOWER_UNAUTHENTICATED_API: opens Flower's commands to everybody; unset it"


_CHECKS: tuple[Callable[[Environment], Iterator[str]], ...] = (
    _secret_key, _key_ring, _hosts, _public_url, _debug, _embedded_servers, _redis, _flower,
)  # fmt: skip
