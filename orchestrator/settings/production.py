"""Production: refuses to start when something needed is missing, naming all of it at once."""

from __future__ import annotations

import os

from django.core.exceptions import ImproperlyConfigured

_NEEDED = (
    "DATABASE_URL",
    "REDIS_URL",
    "MONGODB_URI",
    "SECRET_KEY",
    "FIELD_ENCRYPTION_KEYS",
    "ALLOWED_HOSTS",
    "ORCHESTRATOR_PUBLIC_URL",
)
if _missing := [name for name in _NEEDED if not os.environ.get(name)]:
    raise ImproperlyConfigured(
        f"Set these environment variables before starting in production: {', '.join(_missing)}"
    )
if len(os.environ["SECRET_KEY"]) < 50:
    raise ImproperlyConfigured("SECRET_KEY is too short: use at least 50 random characters")

from orchestrator.settings.base import *  # noqa: E402, F403
from orchestrator.settings.base import HOME, STORAGES  # noqa: E402

DEBUG = False
WHITENOISE_USE_FINDERS = False
STATIC_ROOT = os.environ.get("STATIC_ROOT", str(HOME / "static"))
STORAGES = {**STORAGES, "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"}}
SECURE_SSL_REDIRECT = os.environ.get("SECURE_SSL_REDIRECT", "1") == "1"
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^metrics$"]  # probes come from inside, without TLS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_HSTS_SECONDS = 31_536_000
SECURE_HSTS_INCLUDE_SUBDOMAINS = True
SECURE_HSTS_PRELOAD = True
SESSION_COOKIE_SECURE = True
CSRF_COOKIE_SECURE = True
