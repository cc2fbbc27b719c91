"""What the OpenAPI schema says about the door: how to authenticate, and which parameters a list takes."""

from __future__ import annotations

from typing import Any

from drf_spectacular.contrib.django_filters import DjangoFilterExtension
from drf_spectacular.extensions import OpenApiAuthenticationExtension

from tenants.api import ordering
from tenants.api.filters import SEARCH, SEARCH_LENGTH

Schema = dict[str, Any]


class TokenScheme(OpenApiAuthenticationExtension):
    target_class = "tenants.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> Schema:
        return {"type": "http", "scheme": "bearer", "description": "A token of `manage.py create_token`."}


class MemberScheme(OpenApiAuthenticationExtension):
    target_class = "tenants.authentication.MemberAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> Schema:
        about = "The session of a person who signed in; changes need a CSRF token."
        return {"type": "apiKey", "in": "cookie", "name": "sessionid", "description": about}


class StrictFilterScheme(DjangoFilterExtension):
    """The view's filters, and what `StrictFilterBackend` adds to them."""

    target_class = "tenants.api.filters.StrictFilterBackend"
    priority = 1

    def get_schema_operation_parameters(self, auto_schema: Any, *args: Any, **kwargs: Any) -> list[Schema]:
        found: list[Schema] = super().get_schema_operation_parameters(auto_schema, *args, **kwargs)
        view = auto_schema.view
        if getattr(view, "search_fields", None):
            found.append(
                _parameter(
                    SEARCH, "Words that must all occur.", {"type": "string", "maxLength": SEARCH_LENGTH}
                )
            )
        if offered := sorted(ordering.offered_by(view)):
            about = f"One or more of {', '.join(offered)}, separated by commas; a leading - is descending."
            found.append(_parameter(ordering.PARAMETER, about, {"type": "string"}))
        return found


def _parameter(name: str, about: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "required": False, "description": about, "schema": schema}
