"""Pipelines, their immutable versions, and the templates of their steps."""

from __future__ import annotations

from django.core.validators import RegexValidator
from django.db import models
from django.db.models.functions import Now

from tenants.models import TenantOwned, part_of, unique

KEY_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,62}$"
key_validator = RegexValidator(KEY_PATTERN, "Use lower-case letters, digits, - and _.")


class ActivityTemplate(TenantOwned):
    """A template of steps: who does the work, and how. A step that names it inherits what it does not set itself."""

    bounded_as = "templates"

    key = models.CharField(max_length=63, validators=[key_validator])
    name = models.CharField(max_length=200)
    description = models.TextField(blank=True, default="")
    agent_role = models.CharField(max_length=63, blank=True, default="")
    human_role = models.CharField(max_length=63, blank=True, default="")
    requires_approval = models.BooleanField(default=False)
    is_approval_gate = models.BooleanField(default=False)
    params = models.JSONField(default=dict, blank=True)
    retry = models.JSONField(default=dict, blank=True)
    timeout_seconds = models.PositiveIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (unique("template_key_once_per_tenant", "tenant", "key"),)

    def __str__(self) -> str:
        return self.name


class Pipeline(TenantOwned):
    """A named graph of steps. New runs use its newest version; a run keeps the version that it began with."""

    bounded_as = "pipelines"

    key = models.CharField(max_length=63, validators=[key_validator])
    name = models.CharField(max_length=200)
    description = models.TextField(blank=True, default="")
    enabled = models.BooleanField(default=True)
    latest = models.PositiveIntegerField(default=0, help_text="Number of the newest version.")
    created_by = models.CharField(max_length=200, blank=True, default="", db_default="", editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            unique("pipeline_key_once_per_tenant", "tenant", "key"),
            unique("pipeline_of_tenant", "tenant", "id"),
        )

    def __str__(self) -> str:
        return self.name


class PipelineVersion(TenantOwned):
    """A saved definition with its templates resolved. It never changes."""

    bounded_as = "pipeline_versions"

    pipeline = part_of(Pipeline, "versions")
    number = models.PositiveIntegerField()
    definition = models.JSONField()
    digest = models.CharField(max_length=64)
    created_by = models.CharField(max_length=200, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("-number",)
        constraints = (
            unique("version_number_once", "pipeline", "number"),
            unique("pipeline_version_of_tenant", "tenant", "id"),
        )

    def __str__(self) -> str:
        return f"version {self.number}"
