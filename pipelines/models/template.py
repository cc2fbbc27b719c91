"""What several pipelines do in the same way."""

from __future__ import annotations

from django.core.validators import RegexValidator
from django.db import models
from django.db.models.functions import Now

from tenants.identifiers import uuid7
from tenants.models import TenantOwned

KEY_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,62}$"
key_validator = RegexValidator(KEY_PATTERN, "Use lower-case letters, digits, - and _.")


class ActivityTemplate(TenantOwned):
    """A kind of activity: who does it and how. A step that names it takes what it does not say itself from here."""

    bounded_as = "templates"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
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
        constraints = (
            models.UniqueConstraint(fields=("tenant", "key"), name="template_key_once_per_tenant"),
        )

    def __str__(self) -> str:
        return self.name
