"""Django REST framework and its OpenAPI schema."""

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
