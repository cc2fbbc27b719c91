"""Rows of the audit trail, and of the times when superusers opened another tenant ("break glass")."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from tenants.identifiers import uuid7
from tenants.models.base import Tenant, TenantQuerySet, index, unique


class AuditEntry(models.Model):
    """Who did what to which object. Append-only: the database refuses updates and deletes, even by the owner of the table.

    The entries of each tenant form a chain, and so do those of the platform (`tenant` is empty): each entry holds the hash of the one
    before it. The database sets `number`, `at` and both hashes.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(
        Tenant, on_delete=models.DO_NOTHING, related_name="+", db_constraint=False, db_index=False, null=True
    )
    chain = models.UUIDField(help_text="The tenant's id; zeros for the platform.")
    number = models.BigIntegerField()
    at = models.DateTimeField()
    actor_kind = models.CharField(max_length=16, help_text="user, token, run, command or nobody")
    actor_id = models.CharField(max_length=100, blank=True)
    actor_name = models.CharField(max_length=200, blank=True)
    operation = models.CharField(max_length=200)
    outcome = models.CharField(max_length=16, default="done", help_text="done, refused or failed")
    object_kind = models.CharField(max_length=100, blank=True)
    object_id = models.CharField(max_length=200, blank=True)
    changes = models.JSONField(
        default=dict, help_text="The values before and after, by field, without secrets and texts."
    )
    detail = models.JSONField(default=dict)
    request_id = models.CharField(max_length=64, blank=True)
    ip = models.CharField(max_length=45, blank=True)
    break_glass_id = models.UUIDField(null=True)
    previous_hash = models.CharField(max_length=64)
    hash = models.CharField(max_length=64)

    objects = TenantQuerySet.as_manager()

    class Meta:
        app_label = "tenants"
        verbose_name_plural = "audit entries"
        constraints = (unique("audit_number_once_per_chain", "chain", "number"),)
        indexes = (index("audit_of_object", "tenant", "object_id"),)

    def __str__(self) -> str:
        return f"{self.number}: {self.operation}"

    @property
    def actor(self) -> dict[str, str]:
        return {"kind": self.actor_kind, "id": self.actor_id, "name": self.actor_name}

    @property
    def about(self) -> dict[str, str]:
        return {"kind": self.object_kind, "id": self.object_id}


class BreakGlass(models.Model):
    """For an hour and a stated reason, a superuser sees the rows of a tenant that they are no member of, or of all tenants."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    opened_for = models.UUIDField(null=True, help_text="The tenant's id. Empty for all tenants.")
    slug = models.CharField(max_length=63, blank=True)
    reason = models.CharField(max_length=500)
    opened_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        app_label = "tenants"
        verbose_name = "break-glass session"
        indexes = (index("glass_that_is_broken", "user", ended_at__isnull=True),)

    def __str__(self) -> str:
        return f"{self.slug or 'all tenants'}: {self.reason}"
