"""Common settings. `local`, `test` and `production` override some of them."""

from __future__ import annotations

from typing import Any

from orchestrator.settings.celery import *  # noqa: F403
from orchestrator.settings.engine import *  # noqa: F403
from orchestrator.settings.environment import (
    Env,
    broker_parts,
    database_parts,
    mongodb_parts,
    parse_url,
    redis_parts,
)
from orchestrator.settings.logging import *  # noqa: F403
from orchestrator.settings.notifications import *  # noqa: F403
from orchestrator.settings.services import BASE_DIR, FLOWER_PORT, HOME, PORT, endpoints  # noqa: F401  two are settings
from orchestrator.settings.unfold import *  # noqa: F403

env = Env()
ORCHESTRATOR_HOME = HOME
_servers = endpoints()


def _read_login(variable: str, url: str) -> dict[str, Any]:
    example = "postgresql://user:password@host:5432/database"  # pragma: allowlist secret
    return parse_url(variable, url, database_parts, schemes=Env.POSTGRES_FAMILY, example=example)


# Databases: each connection switches to a role by its options, so one DATABASE_URL is enough. With a separate login in DATABASE_URL_SYSTEM
# for the role that sees all tenants, the main login does not need that role. See docs/adr/0003-database-roles.md.
_login = _read_login("DATABASE_URL", _servers.database_url)
_system_url = env("DATABASE_URL_SYSTEM", default="")
_system_login = _read_login("DATABASE_URL_SYSTEM", _system_url) if _system_url else _login


# Time limit of a statement. `orchestrator.wsgi` sets a smaller one, so that web requests are answered within 10 s.
# Too small: normal statements are cancelled. Too large: a hanging statement occupies a thread for as long.
_statement_seconds = env.float("ORCHESTRATOR_STATEMENT_SECONDS", default=30.0)


def _database(role: str | None, login: dict[str, Any] = _login, **extra: object) -> dict[str, object]:
    options: dict[str, object] = {
        "connect_timeout": 3,
        # Django disables prepared statements, but the hot path depends on them (tenants/sql.py).
        "prepare_threshold": 5,
        # A lost peer is noticed after about 10 s instead of hours. `tenants.postgresql` notices a frozen one, whose kernel still answers.
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
        # The prepared statements of the hot path read few rows by key, so planning them again would cost more than running them.
        "-c plan_cache_mode=force_generic_plan",
        # A generic plan lives as long as its connection. A plan that was made for an empty table must still be good when the table is
        # full, so it must use an index wherever there is one (see also `tenants.models.FOR_LISTS`).
        "-c enable_seqscan=off",
        # JIT decides by estimated costs, which the line above makes huge if there is no index, but no statement runs that long.
        "-c jit=off",
        # The same on the server's side: locks of a lost client are released after about 10 s, and its statements are cancelled.
        "-c tcp_keepalives_idle=5",
        "-c tcp_keepalives_interval=2",
        "-c tcp_keepalives_count=3",
        "-c tcp_user_timeout=10s",
        "-c client_connection_check_interval=5s",
    ]
    if role:
        server_options.append(f"-c role={role}")
        options["options"] = " ".join(server_options)
        # Above statement_timeout, because PostgreSQL itself cancels slow statements as long as it works.
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
_redis_example = "redis://user:password@host:6379/0"  # pragma: allowlist secret
parse_url("REDIS_URL", REDIS_URL, redis_parts, schemes=("redis", "rediss", "unix"), example=_redis_example)
parse_url(
    "CELERY_BROKER_URL", CELERY_BROKER_URL, broker_parts, schemes=("redis", "rediss", "amqp", "amqps", "pyamqp"),
    example=_redis_example,
)  # fmt: skip
parse_url(
    "MONGODB_URI", MONGODB_URI, mongodb_parts, schemes=("mongodb", "mongodb+srv"),
    example="mongodb://user:password@host:27017/database",  # pragma: allowlist secret
)  # fmt: skip
# Read by OpenTelemetry itself, which reports an invalid address with every span.
for _variable in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
    env.web_address(_variable)

SECRET_KEY = env("SECRET_KEY", default="")
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=[])
CSRF_FAILURE_VIEW = "console.error_pages.form_refused"
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])
FIELD_ENCRYPTION_KEYS = env.key_ring("FIELD_ENCRYPTION_KEYS")

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
    "tenants.middleware.HeadMiddleware",
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
APPEND_SLASH = False  # because a POST without the slash would lose its body in the redirect

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
STATIC_ROOT: object = None  # production collects the files; otherwise they are served from the packages
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
# Serves static files directly from the packages. Production collects the files and sets this to False.
WHITENOISE_USE_FINDERS = True

SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"

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
    # Names of enums in the schema, for fields with the same name but different values.
    "ENUM_NAME_OVERRIDES": {
        "LogLineKindEnum": "agents.contracts.LINE_KINDS",
        "SkillKindEnum": "agents.models.SkillKind",
    },
}
