"""Tenants, who acts for them, and what belongs to them. Import from here; the files are an inner matter."""

from tenants.models.access import (
    ApiToken,
    Channel,
    ChannelStatus,
    IdempotentRequest,
    Membership,
    Passkey,
    Role,
    SavedView,
    SecondFactor,
)
from tenants.models.audit import AuditEntry, BreakGlass
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
from tenants.models.events import (
    Event,
    EventLog,
    FreshEvent,
    OffReason,
    WebhookDelivery,
    WebhookDeliveryState,
    WebhookEndpoint,
)
from tenants.models.money import Budget, BudgetPeriod, BudgetUnit, BudgetWait, Reservation, UsageEntry
from tenants.models.retention import (
    DepartedTenant,
    ForgottenOutput,
    RetentionPass,
    RetentionPolicy,
    RetentionTally,
    UsageTotal,
)
