"""Settings of production. It refuses to start if required settings are missing or unsafe, and lists all of them at once."""

from __future__ import annotations

import os
import sys

from django.core.exceptions import ImproperlyConfigured

from orchestrator.settings.unsafe import faults

if _faults := faults(os.environ, sys.argv):
    raise ImproperlyConfigured(
        "Correct these environment variables before starting in production:\n  " + "\n  ".join(_faults)
    )

from orchestrator.settings.base import *  # noqa: F403
from orchestrator.settings.base import HOME, LOGGING, ORCHESTRATOR_HANDS_WORK_TO, STORAGES
from orchestrator.settings.logging import log_format

DEBUG = False
LOGGING = {
    **LOGGING,
    "handlers": {"stderr": {**LOGGING["handlers"]["stderr"], "formatter": log_format("json")}},
}
WHITENOISE_USE_FINDERS = False
STATIC_ROOT = os.environ.get("STATIC_ROOT", str(HOME / "static"))
STORAGES = {**STORAGES, "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"}}
SECURE_SSL_REDIRECT = os.environ.get("SECURE_SSL_REDIRECT", "1") == "1"
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^metrics$"]  # internal probes use no TLS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_HSTS_SECONDS = 31_536_000
SECURE_HSTS_INCLUDE_SUBDOMAINS = True
SECURE_HSTS_PRELOAD = True
SESSION_COOKIE_SECURE = True
CSRF_COOKIE_SECURE = True
# By default agents may only give work to roles of the same pipeline or deliverable.
ORCHESTRATOR_HANDS_WORK_TO = {"*": ["@related"], **ORCHESTRATOR_HANDS_WORK_TO}
ORCHESTRATOR_SECOND_FACTOR = os.environ.get("ORCHESTRATOR_SECOND_FACTOR", "required")
