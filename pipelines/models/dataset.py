"""Datasets: a tenant's own tables, which data sources read."""

from __future__ import annotations

from django.core.validators import RegexValidator
from django.db import models
from django.db.models.functions import Now

from tenants.identifiers import uuid7
from tenants.models import TenantOwned, TenantPart, index, part_of, unique

NAME = RegexValidator(
    r"^(?!.*__)[A-Za-z][A-Za-z0-9_-]{0,62}\Z",
    "Use letters, digits and single _ and -, beginning with a letter.",
)


class FieldType(models.TextChoices):
    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    DATETIME = "datetime"


class RowSource(models.TextChoices):
    """Where the rows of a dataset are stored."""

    DB = "db", "Database"  # in PostgreSQL, from the API or an upload
    API = "api", "API"  # at a URL that returns a list of objects
    FILE = "file"  # in the tenant's folder on the server
    CACHE = "cache"  # in Redis, until they expire


class Dataset(TenantOwned):
    """A named table with typed fields. The data source `<source>:<name>:...` reads its rows."""

    name = models.CharField(max_length=63, validators=[NAME])
    source = models.CharField(max_length=5, choices=RowSource.choices, default=RowSource.DB)
    location = models.CharField(
        max_length=500, blank=True, default="", help_text="The URL of the rows, for the source api."
    )
    description = models.TextField(blank=True, default="")
    fields = models.JSONField(
        help_text='The type of each field: {"id": "string", "enabled": "boolean"}. `id` identifies a row.'
    )
    version = models.IntegerField(
        default=1, editable=False, help_text="Increases with every change; the ETag begins with it."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            unique("dataset_of_tenant", "tenant", "id"),
            unique("dataset_name_once", "tenant", "name"),
        )

    def __str__(self) -> str:
        return self.name


class DatasetRow(TenantPart):
    """One row. Its `key` is its field `id` as text, or a generated id if the table has none."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    dataset = part_of(Dataset, "rows")
    key = models.CharField(max_length=200)
    data = models.JSONField()

    class Meta:
        ordering = ("dataset", "id")
        constraints = (unique("row_once_per_key", "dataset", "key"),)
        indexes = (index("rows_in_order", "dataset", "id"),)

    def __str__(self) -> str:
        return self.key
