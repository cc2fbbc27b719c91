"""What a tenant's agents may know beside their task."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxLengthValidator, RegexValidator
from django.db import models
from django.db.models.functions import Now

from tenants.identifiers import uuid7
from tenants.models import TenantOwned

# Also the name of a folder, which is why nothing else is allowed in it.
KEY_PATTERN = r"^[a-z0-9]+(-[a-z0-9]+)*\Z"
key_validator = RegexValidator(
    KEY_PATTERN, "Use lower-case letters, digits and single hyphens, such as tone-of-voice."
)

LONGEST_CONTENT = 100_000  # characters; what agents read in one go
LONGEST_DESCRIPTION = 1_000  # characters; an agent sees the descriptions of all its skills at once


class SkillKind(models.TextChoices):
    CONTEXT = "context"  # about the client: every agent is given it in full
    SKILL = "skill"  # how something is done: agents see what there is, and read what they need


class Skill(TenantOwned):
    """A text of a tenant for its agents. `version` counts its changes and is part of what a session was told."""

    bounded_as = "skills"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    key = models.CharField(max_length=63, validators=[key_validator])
    name = models.CharField(max_length=100)
    description = models.TextField(
        blank=True,
        validators=[MaxLengthValidator(LONGEST_DESCRIPTION)],
        help_text="When to read it. Agents decide by this.",
    )
    content = models.TextField(validators=[MaxLengthValidator(LONGEST_CONTENT)], help_text="Markdown.")
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
        constraints = (models.UniqueConstraint(fields=("tenant", "key"), name="skill_key_once"),)

    def __str__(self) -> str:
        return self.key
