"""What is shown of datasets and their rows."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from agents.api.shown import Shown
from pipelines import datasets
from pipelines.data_sources import Source
from pipelines.models import Dataset

DATASETS = "/api/v1/datasets/"


class DatasetSerializer(Shown):
    """A tenant's own table, or where its rows are found."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    source = serializers.CharField(  # type: ignore[assignment]  # a member of the object
        help_text=f"One of {', '.join(Source)}."
    )
    location = serializers.CharField(help_text="The address of the rows, for the source api.")
    description = serializers.CharField()
    fields = serializers.DictField(child=serializers.CharField())  # type: ignore[assignment]  # a member of the object
    row_count = serializers.SerializerMethodField(help_text="null where rows are not kept here.")
    version = serializers.IntegerField(help_text="Raised by every change, also of rows; the ETag.")
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    link = serializers.SerializerMethodField()

    def get_row_count(self, dataset: Dataset) -> int | None:
        return datasets.number_of_rows(dataset)

    def get_link(self, dataset: Dataset) -> str:
        return f"{DATASETS}{dataset.name}/"


class RowSerializer(serializers.Serializer[Any]):
    """One row. `key` is its `id` as text, or an id of ours in a table without one."""

    key = serializers.CharField()
    data = serializers.DictField()  # type: ignore[assignment]  # a member, not the attribute


class FilledSerializer(Shown):
    """What came of the rows."""

    added = serializers.IntegerField()
    updated = serializers.IntegerField(help_text="Rows that were there and are different now.")
    removed = serializers.IntegerField()
    rows = serializers.IntegerField(help_text="How many there are now.")
    version = serializers.IntegerField(help_text="Of the dataset; the ETag.")
