"""Tenants, who acts for them, and what belongs to them. Import from here; the files are an inner matter."""

from tenants.models.access import (
    ApiToken,
    Channel,
    ChannelStatus,
    IdempotentRequest,
    Membership,
    Passkey,
    Role,
    SecondFactor,
)
from tenants.models.base import (
    FOR_LISTS,
    ConfigurationChange,
    Pause,
    PauseKind,
    Plan,
    Tenant,
    TenantOwned,
    TenantPart,
    TenantQuerySet,
)
from tenants.models.money import Budget, BudgetPeriod, BudgetUnit, BudgetWait, Reservation, UsageEntry

from .audit import AuditEntry, BreakGlass
from .events import (
    Event,
    EventLog,
    FreshEvent,
    OffReason,
    WebhookDelivery,
    WebhookDeliveryState,
    WebhookEndpoint,
)
from .retention import (
    DepartedTenant,
    ForgottenOutput,
    RetentionPass,
    RetentionPolicy,
    RetentionTally,
    UsageTotal,
)
from .saved_views import SavedView

__all__ = (
    "FOR_LISTS",
    "ApiToken",
    "AuditEntry",
    "BreakGlass",
    "Budget",
    "BudgetPeriod",
    "BudgetUnit",
    "BudgetWait",
    "Channel",
    "ChannelStatus",
    "ConfigurationChange",
    "DepartedTenant",
    "Event",
    "EventLog",
    "ForgottenOutput",
    "FreshEvent",
    "IdempotentRequest",
    "Membership",
    "OffReason",
    "Passkey",
    "Pause",
    "PauseKind",
    "Plan",
    "Reservation",
    "RetentionPass",
    "RetentionPolicy",
    "RetentionTally",
    "Role",
    "SavedView",
    "SecondFactor",
    "Tenant",
    "TenantOwned",
    "TenantPart",
    "TenantQuerySet",
    "UsageEntry",
    "UsageTotal",
    "WebhookDelivery",
    "WebhookDeliveryState",
    "WebhookEndpoint",
)
