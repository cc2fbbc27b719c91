"""The API's own description: `/api/v1/schema/` for programs, `/api/v1/docs/` for people.

Anybody may ask for it, so each process makes it once and then only sends it.
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

# The page draws itself: its script sets styles, and its style sheet holds pictures as data.
DRAWS_ITSELF = POLICY_WITH_SCRIPTS.replace("img-src 'self'", "img-src 'self' data:").replace(
    "style-src 'self'", "style-src 'self' 'unsafe-inline'"
)

_making = threading.Lock()


class SchemaView(SpectacularAPIView):
    """OpenAPI 3.1, as YAML or, where JSON is asked for by `Accept` or `?format=json`, as JSON."""

    @extend_schema(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        renderer = request.accepted_renderer
        with _making:  # it takes a second of a processor, which two at once would take twice
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
            "description": "`callback.token` of a job; counts for its run alone.",
        }


@cache
def _render_as(media_type: str) -> bytes:
    kind = next(each for each in SchemaView.renderer_classes if each.media_type == media_type)
    schema = SchemaView.generator_class().get_schema(request=None, public=True)
    rendered: bytes = kind().render(schema)  # type: ignore[assignment]  # declared for those that give text
    return rendered


app_name = "api_document"
urlpatterns = [
    path("schema/", SchemaView.as_view(), name="schema"),
    path(
        "docs/",
        send_policy(SpectacularSwaggerSplitView.as_view(url_name="api_document:schema"), DRAWS_ITSELF),
        name="docs",
    ),
]
