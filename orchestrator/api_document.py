"""The OpenAPI document at `/api/v1/schema/`, and its page for people at `/api/v1/docs/`.

Both are public. Each process generates the document once and caches it.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.settings import spectacular_settings
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.request import Request

from console.content_security import POLICY_WITH_SCRIPTS, send_policy

# Swagger UI's script sets inline styles, and its style sheet contains images as data URLs.
SWAGGER_POLICY = POLICY_WITH_SCRIPTS.replace("img-src 'self'", "img-src 'self' data:").replace(
    "style-src 'self'", "style-src 'self' 'unsafe-inline'"
)

_generation = threading.Lock()


class SchemaView(SpectacularAPIView):
    """OpenAPI 3.1 as YAML, or as JSON if `Accept` or `?format=json` requests it."""

    @extend_schema(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        renderer = request.accepted_renderer
        with _generation:  # so that concurrent requests do not generate it twice, which takes a second
            document = _render_as(renderer.media_type)
        inline = f'inline; filename="{spectacular_settings.TITLE}.{renderer.format}"'
        return HttpResponse(
            document, content_type=renderer.media_type, headers={"Content-Disposition": inline}
        )


class RunTokenScheme(OpenApiAuthenticationExtension):
    target_class = "activities.api.run_callbacks.RunTokenAuthentication"
    name = "run_token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "The `callback.token` of a job; valid only for its run.",
        }


@cache
def _render_as(media_type: str) -> bytes:
    kind = next(each for each in SchemaView.renderer_classes if each.media_type == media_type)
    rendered: bytes = kind().render(_generate())  # type: ignore[assignment]  # declared for those that give text
    return rendered


@cache
def _generate() -> Any:
    return SchemaView.generator_class().get_schema(request=None, public=True)


app_name = "api_document"
urlpatterns = [
    path("schema/", SchemaView.as_view(), name="schema"),
    path(
        "docs/",
        send_policy(SpectacularSwaggerSplitView.as_view(url_name="api_document:schema"), SWAGGER_POLICY),
        name="docs",
    ),
]
