"""Objects as the API shows them: declared once, for the answer and for the OpenAPI schema.

Values go out as they are, since the renderer knows times, ids and decimals; converting each of them twice is
what makes long lists slow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from operator import attrgetter
from typing import Any

from rest_framework import serializers


class Shown(serializers.Serializer[Any]):
    """An object of an answer. Plain fields are read as attributes, `SerializerMethodField`s are called."""

    def to_representation(self, instance: Any) -> dict[str, Any]:
        return {name: value_of(instance) for name, value_of in self._getters}

    @cached_property
    def _getters(self) -> list[tuple[str, Callable[[Any], Any]]]:
        return [(name, self._getter(field)) for name, field in self.fields.items()]

    def _getter(self, field: serializers.Field[Any, Any, Any, Any]) -> Callable[[Any], Any]:
        if isinstance(field, serializers.SerializerMethodField):
            found: Callable[[Any], Any] = getattr(self, field.method_name or "")
            return found
        return attrgetter(field.source or "")
