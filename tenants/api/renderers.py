"""How answers are written: `tenants.wire_json`, as a renderer of REST framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework.renderers import BaseRenderer

from tenants.wire_json import dumps


class JSONRenderer(BaseRenderer):
    """Renders everything the API answers, problems included."""

    media_type = "application/json"
    format = "json"
    charset = None  # JSON is UTF-8 by definition
    render_style = "binary"

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        return b"" if data is None else dumps(data)
