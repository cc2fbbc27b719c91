"""The models of access to a tenant: members, tokens, external channels, stored answers for idempotency, and saved views."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from tenants.identifiers import uuid7
from tenants.models.base import TenantOwned, index, unique


class Role(models.TextChoices):
    """The permissions of a person or a token. Each role includes those below it."""

    ADMIN = "admin"  # configures agents, pipelines, schedules and members
    OPERATOR = "operator"  # submits, cancels, retries, reassigns
    REVIEWER = "reviewer"  # decides questions to people
    VIEWER = "viewer"  # reads

    def includes(self, other: Role) -> bool:
        order = list(Role)
        return order.index(self) <= order.index(other)


class Membership(TenantOwned):
    """A person's role in a tenant, with the human roles whose inbox items are theirs."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role.choices, default=Role.REVIEWER)
    human_roles = models.JSONField(default=list, blank=True, help_text='For example ["editor"].')
    slack_user = models.CharField(
        max_length=64,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="The Slack user whose buttons decide in this person's name, as <workspace id>/<user id>. Empty: none.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name = "member"
        constraints = (
            unique("membership_once_per_tenant", "tenant", "user"),
            unique("slack_user_is_one_member", "tenant", "slack_user", where=~models.Q(slack_user="")),
            unique("membership_of_tenant", "tenant", "id"),
        )

    def __str__(self) -> str:
        return f"{self.user} as {self.role}"

    @property
    def acting_role(self) -> Role:
        """Return the role as which the person acts: superusers are admins in all tenants of which they are members."""
        return Role.ADMIN if self.user.is_superuser else Role(self.role)


class SecondFactor(models.Model):
    """A person's second factor at the login: one-time codes of an app (RFC 6238), passkeys, and recovery codes.

    It belongs to the person, not to a tenant. Only `console.second_factor` writes it.
    """

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, primary_key=True, on_delete=models.CASCADE, related_name="+"
    )
    secret_sealed = models.TextField(
        editable=False, help_text="The encrypted secret of the codes, and the unused recovery codes."
    )
    last_step = models.BigIntegerField(
        default=-1, editable=False, help_text="The newest code that was accepted. No code is accepted twice."
    )
    confirmed_at = models.DateTimeField(
        null=True,
        editable=False,
        help_text="Since when codes are required. Empty until the first code was entered correctly.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name = "second factor"

    def __str__(self) -> str:
        return f"Second factor of {self.user}"


class Passkey(models.Model):
    """A key on a person's device, bound to the console's host name (WebAuthn). It contains no secret.
    Only `console.second_factor` writes it."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    factor = models.ForeignKey(SecondFactor, on_delete=models.CASCADE, related_name="passkeys")
    name = models.CharField(max_length=60, help_text="The name by which its owner recognizes the device.")
    credential = models.BinaryField(
        max_length=1023, unique=True, editable=False, help_text="The id of the credential in the browser."
    )
    public_key = models.BinaryField(editable=False)
    uses = models.BigIntegerField(
        editable=False,
        help_text="The device's counter of uses. A lower counter reveals a copy. 0 if the device does not count.",
    )
    answered = models.BinaryField(
        editable=False,
        help_text="The last challenge that it has answered. It cannot answer the same challenge twice.",
    )
    used_at = models.DateTimeField(null=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return self.name


class ApiToken(TenantOwned):
    """A secret that acts for a tenant. Only its SHA-256 is stored; the secret itself is displayed once."""

    bounded_as = "tokens"
    bounded_among = {"revoked_at": None}

    name = models.CharField(max_length=100)
    # It stays when the account is deleted: the token is then refused as that of a former member. Without a person it would stay valid.
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.DO_NOTHING,
        related_name="+",
        null=True,
        blank=True,
        editable=False,
        db_constraint=False,
        db_index=False,
        help_text="The person behind the token. Empty: none, so that the token has no vote.",
    )
    role = models.CharField(max_length=16, choices=Role.choices)
    prefix = models.CharField(
        max_length=16, editable=False, help_text="The first characters, to recognize the token."
    )
    secret_hash = models.CharField(max_length=64, unique=True, editable=False)
    scopes = models.JSONField(
        default=list, blank=True, help_text="If empty, the token has all permissions of its role."
    )
    platform = models.BooleanField(
        default=False, help_text="Also allows changes to the registry of agents that all tenants share."
    )
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name = "API token"
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class ChannelStatus(models.TextChoices):
    ACTIVE = "active"  # Agents may use it, until `expires_at` if that is set.
    EXPIRED = "expired"  # Somebody must sign in there again and reactivate it.
    DISABLED = "disabled"  # Somebody has switched it off.


class Channel(TenantOwned):
    """An external connection of the tenant that agents need, such as an account for advertisements.

    The access itself is stored elsewhere; this is its status. Only `tenants.channels` writes `status`.
    """

    kind = models.CharField(max_length=63, help_text="For example google-ads.")
    name = models.CharField(max_length=200)
    status = models.CharField(
        max_length=8, choices=ChannelStatus.choices, default=ChannelStatus.ACTIVE, editable=False
    )
    status_since = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField(
        null=True, blank=True, help_text="When it expires. Empty if that is not known."
    )
    details = models.JSONField(
        default=dict, blank=True, help_text="Data for agents, such as account numbers. No secrets."
    )
    version = models.IntegerField(
        default=1, editable=False, help_text="Increases with every change; the ETag begins with it."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (unique("channel_named_once_per_kind", "tenant", "kind", "name"),)
        indexes = (index("channels_that_expire", "expires_at", status="active", expires_at__isnull=False),)

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})"


class IdempotentRequest(TenantOwned):
    """The answer to a POST with an Idempotency-Key, written in the transaction of the request's effect.

    Neither the key nor the body is stored, only their digests.
    """

    digest = models.CharField(max_length=64, help_text="A digest of the caller, the path and the key.")
    request_digest = models.CharField(
        max_length=64, help_text="A digest of the request. A different request cannot use the same key."
    )
    status_code = models.PositiveSmallIntegerField()
    headers = models.JSONField(default=dict)
    body = models.BinaryField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = (unique("idempotency_key_once", "tenant", "digest"),)
        indexes = (index("idempotent_requests_by_age", "created_at"),)

    def __str__(self) -> str:
        return f"{self.status_code} at {self.created_at:%Y-%m-%d %H:%M}"


LONGEST_NAME = 60
LONGEST_QUERY = 1_000


class SavedView(TenantOwned):
    """A named query of a page. It belongs to a member and is deleted with the membership; without a member, the tenant shares it."""

    bounded_as = "saved_views"

    # PostgreSQL deletes them with the membership, by the foreign key with the tenant, so Django needs no query for them.
    membership = models.ForeignKey(
        Membership,
        on_delete=models.DO_NOTHING,
        related_name="+",
        null=True,
        db_constraint=False,
        db_index=False,
    )
    page = models.CharField(max_length=32, help_text="The name of the page's URL.")
    name = models.CharField(max_length=LONGEST_NAME)
    query = models.CharField(max_length=LONGEST_QUERY, blank=True, help_text="The query string.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("tenant", "membership", "page", "name"),
                name="saved_view_named_once",
                nulls_distinct=False,
            ),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def is_shared(self) -> bool:
        return self.membership_id is None
