"""Objects as the API shows them: declared once, for the answer and for the OpenAPI schema.

Values go out as they are, since the renderer knows times, ids and decimals; converting each of them twice, and copying every field for
every answer, is what makes REST framework's own serializers slow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers


class ResponseSerializer(serializers.Serializer[Any]):
    """An object of an answer. Plain fields are read as attributes, `SerializerMethodField`s are called."""

    def to_representation(self, instance: Any) -> dict[str, Any]:
        return {
            name: getattr(self, reader)(instance) if isinstance(reader, str) else reader(instance)
            for name, reader in _readers(type(self))
        }


@extend_schema_field({"type": "string", "format": "decimal"})
class AmountField(serializers.SerializerMethodField):
    """An exact decimal, which goes out as text: a reader's float would lose cents."""

    def __init__(self, *, allow_null: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.allow_null = allow_null


@cache
def _readers(kind: type[ResponseSerializer]) -> tuple[tuple[str, str | Callable[[Any], Any]], ...]:
    """How each member of a kind of object is found: by the method of this name, or by this function."""
    return tuple((name, _reader(name, field)) for name, field in kind._declared_fields.items())


def _reader(name: str, field: serializers.Field[Any, Any, Any, Any]) -> str | Callable[[Any], Any]:
    if isinstance(field, serializers.SerializerMethodField):
        return field.method_name or f"get_{name}"
    return attrgetter(field.source or name)
