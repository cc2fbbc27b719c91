"""Settings that hold everywhere. `local`, `test` and `production` say what differs."""

from __future__ import annotations

import os
from typing import Any

import environ

from orchestrator.settings.celery import *  # noqa: F403
from orchestrator.settings.engine import *  # noqa: F403
from orchestrator.settings.logging import *  # noqa: F403
from orchestrator.settings.notifications import *  # noqa: F403
from orchestrator.settings.services import BASE_DIR, HOME, endpoints
from orchestrator.settings.unfold import *  # noqa: F403

env = environ.Env()
ORCHESTRATOR_HOME = HOME
_servers = endpoints()

# Databases: three roles, chosen by the connection's options, so one DATABASE_URL is enough. Where DATABASE_URL_SYSTEM names a login of its
# own for what sees all tenants, the other one need not be able to become it. See docs/adr/0003-database-roles.md.
_login = environ.Env.db_url_config(_servers.database_url)
_system_login = environ.Env.db_url_config(env("DATABASE_URL_SYSTEM", default="") or _servers.database_url)


# How long one statement may take. `orchestrator.wsgi` says less: who waits for an answer of web is told within 10 s that there is none.
# Too small: honest statements are cut off. Too large: one that hangs holds a thread for as long.
_statement_seconds = env.float("ORCHESTRATOR_STATEMENT_SECONDS", default=30.0)


def _database(role: str | None, login: dict[str, Any] = _login, **extra: object) -> dict[str, object]:
    options: dict[str, object] = {
        "connect_timeout": 3,
        # Django switches prepared statements off; the hot path lives on them (tenants/sql.py).
        "prepare_threshold": 5,
        # A peer that vanished is noticed after about 10 s instead of the kernel's hours. One that is frozen, whose kernel goes on
        # answering, is noticed by `tenants.postgresql`.
        "tcp_user_timeout": 10_000,
        "keepalives": 1,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        **login.get("OPTIONS", {}),
    }
    server_options = [
        "-c lock_timeout=3s",
        "-c idle_in_transaction_session_timeout=15s",
        f"-c statement_timeout={_statement_seconds * 1000:.0f}",
        # The prepared statements of the hot path touch few rows by key: planning them again costs more than running them.
        "-c plan_cache_mode=force_generic_plan",
        # Such a plan is kept as long as its connection. One that was made for an empty table must find its rows by key when the table is
        # full, so none may read a table from end to end where there is an index (see also `tenants.models.FOR_LISTS`).
        "-c enable_seqscan=off",
        # It judges by estimated costs, which the line above makes huge where there is no index; nothing here runs for so long.
        "-c jit=off",
        # The same from the other side: locks of a client that vanished are free after about 10 s, and what a client no longer waits
        # for is not carried on.
        "-c tcp_keepalives_idle=5",
        "-c tcp_keepalives_interval=2",
        "-c tcp_keepalives_count=3",
        "-c tcp_user_timeout=10s",
        "-c client_connection_check_interval=5s",
    ]
    if role:
        server_options.append(f"-c role={role}")
        options["options"] = " ".join(server_options)
        # Above statement_timeout: PostgreSQL itself ends what takes too long, as long as it is able to say so.
        options["answer_within_seconds"] = _statement_seconds + 1.5
    return {
        **login,
        "ENGINE": "tenants.postgresql",
        "CONN_MAX_AGE": None,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": options,
        **extra,
    }


DATABASES = {
    "default": _database("orchestrator_app", TEST={"MIRROR": "owner"}),
    "system": _database("orchestrator_system", _system_login, TEST={"MIRROR": "owner"}),
    "admin": _database("orchestrator_admin", TEST={"MIRROR": "owner"}),
    "owner": _database(None),
}
DATABASE_ROUTERS = ["tenants.context.DatabaseRouter"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASE_URL = _servers.database_url
REDIS_URL = _servers.redis_url
MONGODB_URI = _servers.mongodb_uri
CELERY_BROKER_URL = env("CELERY_BROKER_URL", default=REDIS_URL)

SECRET_KEY = env("SECRET_KEY", default="")
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=[])
CSRF_FAILURE_VIEW = "console.error_pages.form_refused"
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])
FIELD_ENCRYPTION_KEYS = env.list("FIELD_ENCRYPTION_KEYS", default=[])

INSTALLED_APPS = [
    "unfold.apps.BasicAppConfig",  # the theme of the admin
    "orchestrator.apps.AdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "django_filters",
    "django_htmx",  # for its static files
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_celery_beat",
    "django_celery_results",
    "tenants",
    "agents",
    "activities",
    "pipelines",
    "console",
    "orchestrator",
]

MIDDLEWARE = [
    "tenants.middleware.RequestIdMiddleware",
    "tenants.middleware.TracingMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "console.content_security.ContentPolicyMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "console.second_factor.SecondFactorMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "tenants.login_throttle.SigningInMiddleware",
    "tenants.middleware.AdminMiddleware",
]

ROOT_URLCONF = "orchestrator.urls"
WSGI_APPLICATION = "orchestrator.wsgi.application"
APPEND_SLASH = False  # A POST to a path without its slash would lose its body in the redirect.

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "tenants.admin_scope.add_break_glass",
            ]
        },
    }
]

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False

STATIC_URL = "/static/"
STATIC_ROOT: object = None  # Production collects the files; elsewhere they are served from the packages.
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
# Serves the packages' static files without a collectstatic step; production collects them and sets both to False.
WHITENOISE_USE_FINDERS = True

SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"

PORT = int(os.environ.get("PORT", "8000"))
FLOWER_PORT = int(os.environ.get("FLOWER_PORT", "5555"))

# Django REST framework and its OpenAPI schema.
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": (
        "tenants.authentication.TokenAuthentication",
        "tenants.authentication.MemberAuthentication",
    ),
    "DEFAULT_PERMISSION_CLASSES": ("tenants.api.permissions.RolePermission",),
    "DEFAULT_PARSER_CLASSES": ("tenants.api.bodies.StrictJSONParser",),
    "DEFAULT_RENDERER_CLASSES": ("tenants.api.bodies.JSONRenderer",),
    "DEFAULT_PAGINATION_CLASS": "tenants.api.pagination.CursorPagination",
    "DEFAULT_FILTER_BACKENDS": ("tenants.api.filters.StrictFilterBackend",),
    "DEFAULT_THROTTLE_CLASSES": ("tenants.api.throttling.TenantThrottle",),
    "DEFAULT_SCHEMA_CLASS": "tenants.api.schema.ResourceSchema",
    "EXCEPTION_HANDLER": "tenants.api.problems.exception_handler",
    "UNAUTHENTICATED_USER": None,
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}

SPECTACULAR_SETTINGS = {
    "TITLE": "Orchestrator API",
    "VERSION": "1",
    "DESCRIPTION": "Submit work for AI agents and people, watch it, decide about it.",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SERVE_AUTHENTICATION": [],
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "tenants.api.schema.add_what_all_have",
    ],
    # Members of the same name with other values: the schema needs a name for each.
    "ENUM_NAME_OVERRIDES": {
        "LogLineKindEnum": "agents.contracts.LINE_KINDS",
        "SkillKindEnum": "agents.models.SkillKind",
    },
}
