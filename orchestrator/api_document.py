"""The API's own description, at `/api/v1/schema/`. Anybody may ask for it, so each process makes it once and then only sends it."""

from __future__ import annotations

import threading
from functools import cache

from django.http import HttpResponse
from drf_spectacular.settings import spectacular_settings
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView
from rest_framework.request import Request

_making = threading.Lock()


class SchemaView(SpectacularAPIView):
    """OpenAPI 3.1, as YAML or, where JSON is asked for by `Accept` or `?format=json`, as JSON."""

    @extend_schema(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        renderer = request.accepted_renderer
        with _making:  # it takes a second of a processor, which two at once would take twice
            document = _made_as(renderer.media_type)
        inline = f'inline; filename="{spectacular_settings.TITLE}.{renderer.format}"'
        return HttpResponse(
            document, content_type=renderer.media_type, headers={"Content-Disposition": inline}
        )


@cache
def _made_as(media_type: str) -> bytes:
    kind = next(each for each in SchemaView.renderer_classes if each.media_type == media_type)
    schema = SchemaView.generator_class().get_schema(request=None, public=True)
    rendered: bytes = kind().render(schema)  # type: ignore[assignment]  # declared for those that give text
    return rendered
