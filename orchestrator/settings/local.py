"""Settings of `make up` and `make demo`: one machine, embedded servers, no secrets to set."""

from __future__ import annotations

import secrets

from orchestrator.settings.base import *  # noqa: F403
from orchestrator.settings.base import (
    ALLOWED_HOSTS,
    CELERY_BROKER_URL,
    DATABASE_URL,
    FIELD_ENCRYPTION_KEYS,
    FLOWER_PORT,
    HOME,
    MONGODB_URI,
    ORCHESTRATOR_PLATFORM_KEYS_FOR,
    PORT,
    REDIS_URL,
    SECRET_KEY,
)
from orchestrator.settings.unsafe import places_of

# One person owns the keys in the environment and all tenants.
if ORCHESTRATOR_PLATFORM_KEYS_FOR is None:
    ORCHESTRATOR_PLATFORM_KEYS_FOR = [{}]


def _load_secret(name: str) -> str:
    """Return a secret that is created at the first start and stored in ORCHESTRATOR_HOME, so that sessions survive a restart."""
    path = HOME / "secrets" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_suffix(f".{secrets.token_hex(4)}")
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_hex(32))
        try:
            # Linking fails if another process was first; then its secret is used.
            path.hardlink_to(draft)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_text()


DEBUG = False
SECRET_KEY = SECRET_KEY or _load_secret("django")
FIELD_ENCRYPTION_KEYS = FIELD_ENCRYPTION_KEYS or [f"local:{_load_secret('fields')}"]
ALLOWED_HOSTS = ALLOWED_HOSTS or ["127.0.0.1", "localhost", "[::1]", "testserver"]
ORCHESTRATOR_CLI_SHARED_USER = True  # because the machine has one user
# Allow agents under development on loopback, but not our own servers there.
ORCHESTRATOR_EGRESS_LOOPBACK_EXCEPT: frozenset[int] | None = frozenset(
    {
        int(port)
        for url in (DATABASE_URL, REDIS_URL, CELERY_BROKER_URL, MONGODB_URI)
        for _, port in places_of(url)
        if port
    }
    | {PORT, FLOWER_PORT}
)
