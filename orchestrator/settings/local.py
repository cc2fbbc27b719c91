"""One machine, embedded servers, no secrets to set: what `make up` and `make demo` use."""

from __future__ import annotations

import secrets

from orchestrator.settings.base import *  # noqa: F403
from orchestrator.settings.base import ALLOWED_HOSTS, FIELD_ENCRYPTION_KEYS, HOME, SECRET_KEY
from orchestrator.settings.engine import ORCHESTRATOR_EGRESS_ALLOW


def _kept_secret(name: str) -> str:
    """A secret made at the first start and kept in ORCHESTRATOR_HOME, so that sessions and tokens outlive a restart."""
    path = HOME / "secrets" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_suffix(f".{secrets.token_hex(4)}")
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_hex(32))
        try:
            # Linking fails when another process was first; then its secret counts.
            path.hardlink_to(draft)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_text()


DEBUG = False
SECRET_KEY = SECRET_KEY or _kept_secret("django")
FIELD_ENCRYPTION_KEYS = FIELD_ENCRYPTION_KEYS or [f"local:{_kept_secret('fields')}"]
ALLOWED_HOSTS = ALLOWED_HOSTS or ["127.0.0.1", "localhost", "[::1]", "testserver"]
# The sample agents of examples/ listen on loopback. Any port there may be called, on this machine only.
ORCHESTRATOR_EGRESS_ALLOW = ORCHESTRATOR_EGRESS_ALLOW or ("127.0.0.1:*", "localhost:*")
