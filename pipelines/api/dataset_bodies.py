"""What is sent about datasets and their rows."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from agents.api.strict import OPTIONAL, Member, OneOf, StrictSerializer, Text
from pipelines.data_sources import FieldType, Source
from pipelines.data_sources.catalogue import ABOUT_TABLES
from pipelines.datasets import Given


@extend_schema_field(
    {
        "type": "object",
        "additionalProperties": {"type": "string", "enum": list(FieldType)},
        "example": {"id": "string", "enabled": "boolean", "createdAt": "datetime"},
    }
)
class Fields(Member):
    """Names of fields with their types."""


@extend_schema_field({"type": "array", "items": {"type": "object"}})
class Rows(serializers.Field[Any, Any, Any, Any]):
    """A list; what is in it is looked at with the fields' types."""

    default_error_messages = {"invalid": "must be a list of objects"}

    def to_internal_value(self, data: Any) -> Given:
        if not isinstance(data, list):
            self.fail("invalid")
        return Given(data)

    def to_representation(self, value: Any) -> Any:
        return value


class DatasetPatchSerializer(StrictSerializer):
    """What of a dataset is to change. Its name and source never do."""

    location = Text(
        allow_blank=True,
        help_text="For the source api: an address that answers a list of objects.",
        **OPTIONAL,
    )
    description = Text(allow_blank=True, trim_whitespace=False, **OPTIONAL)
    fields = Fields(help_text="A field `id` tells the rows apart.", **OPTIONAL)  # type: ignore[assignment]
    rows = Rows(help_text="Instead of all rows that there are.", **OPTIONAL)


class DatasetBodySerializer(DatasetPatchSerializer):
    """A dataset. What is left out is emptied, but for its rows."""

    name = Text(help_text="As in the address.", **OPTIONAL)
    source = OneOf(choices=list(Source), help_text="As it is.", **OPTIONAL)  # type: ignore[assignment]
    fields = Fields(help_text="A field `id` tells the rows apart.")


class NewDatasetSerializer(DatasetPatchSerializer):
    """A dataset to be made."""

    name = Text(trim_whitespace=False, help_text=f"For data sources: {ABOUT_TABLES}.")
    source = OneOf(  # type: ignore[assignment]
        choices=list(Source), help_text="Where the rows are; db if left out.", **OPTIONAL
    )
    fields = Fields(help_text="A field `id` tells the rows apart.")
    rows = Rows(help_text="The first rows.", **OPTIONAL)


class RowsSerializer(StrictSerializer):
    """Rows to add, or to change those with the same `id`."""

    rows = Rows()


class FileSerializer(serializers.Serializer[Any]):
    """A file of rows: .csv or .json."""

    file = serializers.FileField()
