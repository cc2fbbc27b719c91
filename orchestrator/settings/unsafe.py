"""Unsafe settings: the checks of the environment without which production refuses to start, before other settings are read."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from ipaddress import ip_address
from urllib.parse import unquote, urlsplit

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
# Decrypts credentials of tenants; only processes that use or store them need it.
SEALING = "FIELD_ENCRYPTION_KEYS"
OF_FLOWER = ("REDIS_URL", "FLOWER_BASIC_AUTH")  # because Flower sees only messages and workers
SECRET_LENGTH, SECRET_VARIETY = 50, 12  # characters, and different characters
PASSWORD_LENGTH = 12
KEY_VARIETY = 6  # different digits; a random key has nearly all sixteen
BUILDS = ("collectstatic",)  # the command in the image's build, which connects to no server
PASSWORD_VARIETY = 6  # different characters
#: URLs that contain a login, with the schemes that support one.
_LOGINS = {
    "DATABASE_URL": ("postgres", "postgresql"), "DATABASE_URL_SYSTEM": ("postgres", "postgresql"), "REDIS_URL": ("redis", "rediss"),
    "CELERY_BROKER_URL": ("redis", "rediss"), "MONGODB_URI": ("mongodb",),
}  # fmt: skip
_COMMON = frozenset(
    {
        "passwordpassword",
        "password1234",
        "changemechangeme",
        "postgrespostgres",
        "123456789012",
        "orchestrator",
    }
)
_DEFAULT_PORTS = {
    "postgres": "5432",
    "postgresql": "5432",
    "redis": "6379",
    "rediss": "6379",
    "mongodb": "27017",
}
_SERVER_OF_PORT = {"5432": "PostgreSQL", "6379": "Redis", "27017": "MongoDB"}
_POWERFUL = frozenset(
    {
        "django",
        "celery",
        "kombu",
        "billiard",
        "psycopg",
        "redis",
        "pymongo",
        "gunicorn",
        "psutil",
        "jinja2",
        "pip",
    }
)
_OURS = frozenset({"orchestrator", "console", "pipelines", "activities", "agents", "tenants"})
_ON = frozenset({"1", "true", "t", "yes", "y", "on"})

Environment = Mapping[str, str]


def faults(environment: Environment, command: Sequence[str] = ()) -> list[str]:
    """Return all faults, each beginning with the name of its variable. Empty: production may start.

    `command` is the command line of the process, because processes need different variables, and an image is built without secrets.
    """
    if tuple(command[1:2]) == BUILDS:
        return []
    needed = variables_needed_by(command)
    missing = [f"{name}: not set" for name in needed if not environment.get(name)]
    return [*missing, *(fault for check in TABLE.values() for fault in check(environment))]


def variables_needed_by(command: Sequence[str]) -> tuple[str, ...]:
    """Return the variables that a process with this command line requires. It should get no others."""
    if is_starting(command):
        return OF_FLOWER
    if "beat" in command[1:] or "migrate" in command[1:3]:
        return tuple(name for name in NEEDED if name != SEALING)
    return NEEDED


def _entries(environment: Environment, name: str) -> list[str]:
    """Return the parts of a variable that contains a list."""
    return [entry.strip() for entry in environment.get(name, "").split(",") if entry.strip()]


def _secret_key(environment: Environment) -> Iterator[str]:
    key = environment.get("SECRET_KEY", "")
    if not key:
        return
    if len(key) < SECRET_LENGTH or len(set(key)) < SECRET_VARIETY:
        yield f"SECRET_KEY: too easily guessed, use at least {SECRET_LENGTH} random characters"
    elif "insecure" in key.lower():
        yield "SECRET_KEY: contains the word insecure, generate your own"


def _key_ring(environment: Environment) -> Iterator[str]:
    entries = _entries(environment, "FIELD_ENCRYPTION_KEYS")
    if not entries and environment.get("FIELD_ENCRYPTION_KEYS"):
        yield "FIELD_ENCRYPTION_KEYS: contains no key, only blanks and commas"
    names = [entry.partition(":")[0] for entry in entries]
    if repeated := {name for name in names if names.count(name) > 1}:
        yield f"FIELD_ENCRYPTION_KEYS: {sorted(repeated)[0]!r} names two keys, and one cannot decrypt what the other has encrypted"
    for entry in entries:
        name, _, key = entry.partition(":")
        if not re.fullmatch(r"[0-9a-fA-F]{64}", key):
            yield f"FIELD_ENCRYPTION_KEYS: {name!r} is not followed by 64 hexadecimal digits, as in `name:<openssl rand -hex 32>`"
        elif len(set(key.lower())) < KEY_VARIETY:
            yield f"FIELD_ENCRYPTION_KEYS: {name!r} is too easily guessed, generate it with `openssl rand -hex 32`"


def _hosts(environment: Environment) -> Iterator[str]:
    if "*" in _entries(environment, "ALLOWED_HOSTS"):
        yield "ALLOWED_HOSTS: * accepts every host name, which lets others choose the links in e-mails; name the hosts"


def _public_url(environment: Environment) -> Iterator[str]:
    url = environment.get("ORCHESTRATOR_PUBLIC_URL", "")
    if url and not _has_host_over_tls(url):
        yield "ORCHESTRATOR_PUBLIC_URL: must begin with https://, because agents send their tokens there"


def _has_host_over_tls(url: str) -> bool:
    try:
        return urlsplit(url).scheme == "https" and bool(urlsplit(url).hostname)
    except ValueError:
        return False


def _passkeys(environment: Environment) -> Iterator[str]:
    origin = environment.get("ORCHESTRATOR_PASSKEY_ORIGIN", "").rstrip("/")
    if not origin:
        return
    if not _has_host_over_tls(origin) or origin != f"https://{urlsplit(origin).netloc}" or "@" in origin:
        yield "ORCHESTRATOR_PASSKEY_ORIGIN: must be https:// and the host name of the console, without a path"
    if find_spec("webauthn") is None:
        yield "ORCHESTRATOR_PASSKEY_ORIGIN: passkeys need the package webauthn; install requirements/passkeys.txt or unset it"


def _debug(environment: Environment) -> Iterator[str]:
    for name in ("DEBUG", "DJANGO_DEBUG"):
        if environment.get(name, "").lower() in _ON:
            yield f"{name}: error pages would show settings and data; unset it"


def _embedded_servers(environment: Environment) -> Iterator[str]:
    if environment.get("ORCHESTRATOR_START_SERVICES") == "1":
        yield "ORCHESTRATOR_START_SERVICES: embedded servers are only for a machine with one user; unset it"


def _servers(environment: Environment) -> Iterator[str]:
    for name, schemes in _LOGINS.items():
        url = environment.get(name, "")
        if not url:
            continue
        try:
            parts = urlsplit(url)
            user, password = unquote(parts.username or ""), unquote(parts.password or "")
        except ValueError:
            yield f"{name}: is not a valid URL"
            continue
        if parts.scheme.partition("+")[0] not in schemes:
            continue  # for example another broker
        if not password:
            yield f"{name}: has no password, so anyone who reaches the server could use it like us"
        elif _is_weak(password, user):
            yield f"{name}: the password is too easily guessed, use at least {PASSWORD_LENGTH} random characters"


def _is_weak(password: str, user: str) -> bool:
    few = len(password) < PASSWORD_LENGTH or len(set(password)) < PASSWORD_VARIETY
    return (
        few
        or password.lower() in {user.lower(), *_COMMON}
        or bool(user and password.lower() == f"{user.lower()}{user.lower()}")
    )


def _egress(environment: Environment) -> Iterator[str]:
    own = {place: name for name in _LOGINS for place in places_of(environment.get(name, ""))}
    for entry in _entries(environment, "AGENT_EGRESS_ALLOW"):
        host, _, port = entry.lower().rpartition("=")[2].strip().rpartition(":")
        host = host.strip("[]").rstrip(".")
        if name := own.get((host, port)):
            yield f"AGENT_EGRESS_ALLOW: {entry} is the server of {name}, which no agent, webhook or data source may reach"
        elif port in _SERVER_OF_PORT:
            yield f"AGENT_EGRESS_ALLOW: {entry} is the port of {_SERVER_OF_PORT[port]}, which is not an agent"
        elif _is_this_machine(host):
            yield f"AGENT_EGRESS_ALLOW: {entry} is this machine itself, where our own servers run"
        elif "=" not in entry:
            yield (
                f"AGENT_EGRESS_ALLOW: {entry} would be open to every tenant's webhooks and data sources too; name its purpose, as in"
                f" agents={entry}"
            )


def _is_this_machine(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def places_of(url: str) -> Iterator[tuple[str, str]]:
    """Yield each host and port of a URL. MongoDB's may have several."""
    scheme, _, rest = url.partition("://")
    for place in rest.partition("/")[0].rpartition("@")[2].split(","):
        if place:
            host, _, port = (
                place.lower().rpartition(":") if re.search(r":\d+$", place) else (place.lower(), "", "")
            )
            yield host.strip("[]").rstrip("."), port or _DEFAULT_PORTS.get(scheme.partition("+")[0], "")


def _inline_callables(environment: Environment) -> Iterator[str]:
    for entry in _entries(environment, "ORCHESTRATOR_INLINE_CALLABLES"):
        top = entry.partition(".")[0]
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\.?", entry):
            yield f"ORCHESTRATOR_INLINE_CALLABLES: {entry!r} is not a module name; name the modules of your agents one by one"
        elif top in sys.stdlib_module_names or top in _POWERFUL:
            yield f"ORCHESTRATOR_INLINE_CALLABLES: {entry!r} contains functions that are not agents, for example some that run programs"
        elif top in _OURS and not entry.startswith(("agents.samples", "orchestrator.demo")):
            yield f"ORCHESTRATOR_INLINE_CALLABLES: {entry!r} is the orchestrator itself; name the modules of your agents"


def _flower(environment: Environment) -> Iterator[str]:
    logins = environment.get("FLOWER_BASIC_AUTH", "")
    weak = [login for login in logins.split(",") if login and len(login.partition(":")[2]) < PASSWORD_LENGTH]
    if weak:
        yield f"FLOWER_BASIC_AUTH: a password has fewer than {PASSWORD_LENGTH} characters (user:password, ...)"
    if environment.get("FLOWER_UNAUTHENTICATED_API", "").lower() in _ON:
        yield "FLOWER_UNAUTHENTICATED_API: opens Flower's commands to everybody; unset it"


#: The checks by what they refuse, in the order of docs/security.md, which has the same table.
TABLE: Mapping[str, Callable[[Environment], Iterator[str]]] = {
    "a short or well-known key for sessions and links": _secret_key,
    "a key ring without keys, with short or repeated ones": _key_ring,
    "an answer to every host name": _hosts,
    "an address for callbacks without TLS": _public_url,
    "passkeys for an address without TLS, or without their package": _passkeys,
    "pages of errors that show data": _debug,
    "embedded servers": _embedded_servers,
    "PostgreSQL, Redis or MongoDB without a login or with a weak one": _servers,
    "addresses inside our network that name no purpose, our own servers or this machine": _egress,
    "inline agents that are any function": _inline_callables,
    "Flower with a weak login or none": _flower,
}
