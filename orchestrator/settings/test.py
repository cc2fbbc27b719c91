"""Settings of the test suite: real servers, short times, no secrets."""

from __future__ import annotations

import os
from typing import Any, cast

os.environ.setdefault("SECRET_KEY", "tests-only")
os.environ.setdefault("FIELD_ENCRYPTION_KEYS", "test:" + "0" * 64)

from orchestrator.settings.local import *  # noqa: F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
ORCHESTRATOR_INLINE_CALLABLES = ("agents.samples", "tests.")
ORCHESTRATOR_UNDO_SECONDS = 0.0  # answers take effect at once, except in tests of the delay
ORCHESTRATOR_API_RATE = 100_000.0
ORCHESTRATOR_API_BURST = 100_000.0
ORCHESTRATOR_API_CALLER_RATE = 100_000.0
ORCHESTRATOR_API_CALLER_BURST = 100_000.0
ORCHESTRATOR_PLATFORM_KEYS_FOR = None  # as in production
ORCHESTRATOR_API_WORK_MS_RATE = 1_000_000.0
ORCHESTRATOR_API_WORK_MS_BURST = 1_000_000.0
ORCHESTRATOR_EGRESS_LOOPBACK_EXCEPT = None  # tests of the guard open what they need
# Otherwise every test client scans all directories of static files, which takes longer than its requests.
WHITENOISE_AUTOREFRESH = True
ORCHESTRATOR_CLI_SHARED_USER = True

# On a machine that is busy with tests, the holder of a lock or of a transaction may not run for seconds, and a new connection takes long.
for _name in ("default", "system", "admin"):
    _options = cast("dict[str, Any]", DATABASES[_name]["OPTIONS"])  # noqa: F405
    _options["connect_timeout"] = 30
    for _usual, _long in (
        ("lock_timeout=3s", "lock_timeout=30s"),
        ("session_timeout=15s", "session_timeout=300s"),
    ):
        _options["options"] = _options["options"].replace(_usual, _long)
