"""Agents: the registry, what tenants and the platform set for them, their sessions and skills."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxLengthValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models.functions import Now

from agents import semantic_versions
from tenants.identifiers import uuid7
from tenants.models import TenantOwned, index, unique
from tenants.models.base import PlainNames

ROLE_PATTERN = r"^[a-z0-9]+(-[a-z0-9]+)*$"
role_validator = RegexValidator(
    ROLE_PATTERN, "Use lower-case letters, digits and single hyphens, such as blog-writer."
)


class Adapter(models.TextChoices):
    """How to reach an agent. Each adapter is a file in `agents/adapters/`."""

    HTTP = "http", "HTTP"
    INLINE = "inline"
    ANTHROPIC = "anthropic"
    OPENAI = "openai", "OpenAI"
    CLI = "cli", "CLI"
    BATCH = "batch"
    A2A = "a2a", "A2A"


#: The adapters whose endpoint is the URL of one agent. It can be checked, and a deployment may replace it.
CALLED_BY_URL = (Adapter.HTTP, Adapter.A2A)


#: For one role and each of its workers, if the settings do not name the adapter.
DEFAULT_STARTS_PER_MINUTE = 600


class Health(models.TextChoices):
    """Whether an agent's endpoint could be reached at the last check. Only information: dispatch does not use it."""

    UNKNOWN = "unknown"  # not checked yet, or not since the address changed
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


class Agent(PlainNames, models.Model):
    """One role of the platform's registry, with its settings. Tenants may override them."""

    role = models.CharField(primary_key=True, max_length=63, validators=[role_validator])
    name = models.CharField(max_length=100)
    description = models.TextField(blank=True)
    adapter = models.CharField(max_length=16, choices=Adapter.choices, default=Adapter.HTTP)
    endpoint = models.CharField(
        max_length=500,
        blank=True,
        help_text="A URL for http and a2a, or the dotted path of a callable for inline.",
    )
    auth_sealed = models.TextField(blank=True, editable=False)
    model = models.CharField(max_length=100, blank=True)
    options = models.JSONField(default=dict, blank=True)
    instructions = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text="What the agent is and how it works; sent with every task. A change starts new sessions.",
    )
    input_schema = models.JSONField(null=True, blank=True, help_text="JSON Schema that params must satisfy.")
    tenant_concurrency = models.PositiveIntegerField(
        default=5,
        validators=[MinValueValidator(1)],
        help_text="How many activities of each tenant may run at once.",
    )
    max_concurrency = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="How many activities of all tenants together may run at once. Empty: no limit.",
    )
    timeout_seconds = models.PositiveIntegerField(
        null=True, blank=True, help_text="The timeout of an attempt. Empty: 660."
    )
    retry = models.JSONField(
        default=dict,
        blank=True,
        help_text="max_attempts, strategy, base_seconds, multiplier, max_seconds, jitter",
    )
    backlog = models.JSONField(
        default=dict,
        db_default={},
        blank=True,
        help_text="max_waiting for each tenant, when_full (reject, drop_oldest or evict_lowest), expire_after_seconds",
    )
    enabled = models.BooleanField(default=True)
    paused = models.BooleanField(
        default=False, help_text="No new work of this role starts for any tenant; current runs end normally."
    )
    health_url = models.CharField(
        max_length=500,
        blank=True,
        default="",
        db_default="",
        help_text="Requested with GET; a 2xx answer means healthy. If empty, any HTTP answer of the endpoint means healthy.",
    )
    health = models.CharField(
        max_length=9, choices=Health.choices, default=Health.UNKNOWN, db_default="unknown", editable=False
    )
    health_detail = models.CharField(max_length=500, blank=True, default="", db_default="", editable=False)
    health_checked_at = models.DateTimeField(null=True, editable=False)
    health_failures = models.PositiveIntegerField(
        default=0, db_default=0, editable=False, help_text="Number of failed checks in a row."
    )
    health_due_at = models.DateTimeField(
        null=True, editable=False, help_text="When it is checked next. Empty: now."
    )
    revision = models.PositiveIntegerField(
        default=1,
        db_default=1,
        editable=False,
        help_text="Increases with every change; the ETag begins with it.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("role",)

    def __str__(self) -> str:
        return self.role

    def starts_per_minute(self, adapter: str = "") -> int:
        """Return the limit of the runaway guard: starts in a minute for each worker, with this adapter or its own. 0 means no limit."""
        default: int = settings.ORCHESTRATOR_STARTS_PER_MINUTE.get(
            adapter or self.adapter, DEFAULT_STARTS_PER_MINUTE
        )
        limit = self.options.get("starts_per_minute", default)
        return int(limit) if type(limit) in (int, float) and limit >= 0 else default


class AgentVersionDeployment(models.Model):
    """A current or former version of an agent in an environment. Only `agents.deployments` writes it.

    At most one is in production. Replaced versions stay as history, with the time and the actor of the replacement.
    """

    class Environment(models.TextChoices):
        PRODUCTION = "production"
        STAGING = "staging"
        DEVELOPMENT = "development"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="deployments")
    version = models.CharField(max_length=64, validators=[semantic_versions.validate])
    environment = models.CharField(max_length=16, choices=Environment.choices)
    endpoint = models.CharField(
        max_length=500, blank=True, help_text="If empty, the agent's own endpoint is used."
    )
    deployed_at = models.DateTimeField(db_default=Now(), editable=False)
    deployed_by = models.CharField(max_length=200, blank=True)
    promoted_from = models.ForeignKey(
        "self", null=True, blank=True, editable=False, on_delete=models.SET_NULL, related_name="+"
    )
    previous = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        editable=False,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="The deployment that was in production before; a rollback restores it.",
    )
    replaced_at = models.DateTimeField(null=True, blank=True, editable=False)
    replaced_by = models.CharField(max_length=200, blank=True, default="", db_default="", editable=False)

    class Meta:
        ordering = ("agent", "-deployed_at", "-id")
        constraints = (
            unique("one_version_in_production", "agent", environment="production", replaced_at__isnull=True),
            unique(
                "version_once_per_environment", "agent", "version", "environment", replaced_at__isnull=True
            ),
        )

    def __str__(self) -> str:
        return f"{self.agent_id} {self.version} ({self.environment})"


class AgentConfig(TenantOwned):
    """A tenant's own settings of a role. Every empty field comes from the registry."""

    # No separate index: the planner could use it to read the rows of all tenants for a statement about one tenant and role.
    agent = models.ForeignKey(
        Agent, on_delete=models.CASCADE, related_name="+", db_column="role", db_index=False
    )
    max_concurrency = models.PositiveIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    max_concurrency_per_group = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="How many activities with one group key may run at once. Empty: 1.",
    )
    adapter = models.CharField(max_length=16, choices=Adapter.choices, blank=True)
    endpoint = models.CharField(max_length=500, blank=True)
    auth_sealed = models.TextField(blank=True, editable=False)
    signing_sealed = models.TextField(
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="The encrypted signing secrets, newest first. Empty: secrets that are derived from the installation's keys.",
    )
    model = models.CharField(max_length=100, blank=True)
    instructions = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text="Replaces the registry's instructions. A change starts new sessions.",
    )
    timeout_seconds = models.PositiveIntegerField(null=True, blank=True)
    retry = models.JSONField(default=dict, blank=True)
    rate = models.JSONField(default=dict, blank=True, help_text="capacity and per_second of starts")
    backlog = models.JSONField(
        default=dict,
        db_default={},
        blank=True,
        help_text="max_waiting, when_full (reject, drop_oldest or evict_lowest), expire_after_seconds",
    )
    hears_of_failures = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether permanent failures of other roles wake this role, so that it can plan again (job.failed).",
    )
    may_hold = models.JSONField(
        default=dict,
        db_default={},
        blank=True,
        help_text="The waiting work, in addition to its own, that its questions to people may hold: everything (true), or "
        "lists of pipelines, deliverables, roles or groups.",
    )
    enabled = models.BooleanField(default=True)
    paused = models.BooleanField(default=False)
    version = models.PositiveIntegerField(default=1, editable=False)

    class Meta:
        constraints = (unique("agent_config_once_per_tenant", "tenant", "agent"),)

    def __str__(self) -> str:
        return f"settings of {self.agent_id}"


class PlatformConfig(models.Model):
    """A group of settings of the whole platform, which can change at run time. Members that are missing in `value` have their defaults."""

    key = models.CharField(primary_key=True, max_length=63)
    value = models.JSONField(default=dict, blank=True)
    version = models.PositiveIntegerField(
        default=1, editable=False, help_text="Increases with every change; the ETag begins with it."
    )
    updated_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_by = models.CharField(max_length=200, blank=True, default="", editable=False)

    class Meta:
        verbose_name = "scheduling settings"
        verbose_name_plural = "scheduling settings"
        ordering = ("key",)

    def __str__(self) -> str:
        return self.key


class EndReason(models.TextChoices):
    """Why a session is not continued."""

    # The agent's instructions, model, adapter or skills have changed.
    INSTRUCTIONS_CHANGED = "instructions_changed"
    INVALID = "invalid"  # the agent does not know it any more
    REPLACED = "replaced"  # the agent began another one about the same deliverable


class AgentSession(TenantOwned):
    """An agent's conversation about one deliverable, continued by revisions and wakes.

    At most one for each deliverable and role is live. Ended sessions stay as history and are never continued.
    """

    deliverable_id = models.UUIDField()
    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="+", db_column="role")
    external_session_id = models.CharField(max_length=200, help_text="The agent's own id of the session.")
    briefing = models.CharField(
        max_length=64,
        blank=True,
        default="",
        db_default="",
        help_text="A digest of what the agent was told about its work. Empty if not known.",
    )
    state: Any = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)
    ended_at = models.DateTimeField(null=True, blank=True, editable=False)
    end_reason = models.CharField(
        max_length=24, blank=True, default="", db_default="", choices=EndReason.choices
    )

    class Meta:
        constraints = (
            unique("one_live_session", "tenant", "deliverable_id", "agent", ended_at__isnull=True),
            models.CheckConstraint(
                condition=models.Q(ended_at__isnull=True, end_reason="")
                | models.Q(ended_at__isnull=False, end_reason__in=EndReason.values),
                name="session_ends_for_a_reason",
            ),
        )
        indexes = (index("sessions_of_deliverable", "tenant", "deliverable_id", "-id"),)

    def __str__(self) -> str:
        return f"{self.agent_id}: {self.external_session_id}"


# The key is also the name of a folder, so no other characters are allowed.
SKILL_KEY_PATTERN = r"^[a-z0-9]+(-[a-z0-9]+)*\Z"
skill_key_validator = RegexValidator(
    SKILL_KEY_PATTERN, "Use lower-case letters, digits and single hyphens, such as tone-of-voice."
)

LONGEST_SKILL = 100_000  # characters; agents read a skill as a whole
LONGEST_SKILL_DESCRIPTION = 1_000  # characters; an agent gets the descriptions of all its skills at once


class SkillKind(models.TextChoices):
    CONTEXT = "context"  # about the client: every agent receives it in full
    SKILL = "skill"  # how to do something: agents see the list, and read what they need


class Skill(TenantOwned):
    """A text of a tenant for its agents. `version` counts its changes; a new version begins new sessions."""

    bounded_as = "skills"

    key = models.CharField(max_length=63, validators=[skill_key_validator])
    name = models.CharField(max_length=100)
    description = models.TextField(
        blank=True,
        validators=[MaxLengthValidator(LONGEST_SKILL_DESCRIPTION)],
        help_text="When to read the skill. Agents decide by this text.",
    )
    content = models.TextField(validators=[MaxLengthValidator(LONGEST_SKILL)], help_text="Markdown.")
    kind = models.CharField(max_length=8, choices=SkillKind.choices, default=SkillKind.SKILL)
    roles = ArrayField(
        models.CharField(max_length=63), default=list, blank=True, help_text="Of agents. Empty: for all."
    )
    enabled = models.BooleanField(default=True)
    version = models.PositiveIntegerField(default=1, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("key",)
        constraints = (unique("skill_key_once", "tenant", "key"),)

    def __str__(self) -> str:
        return self.key
