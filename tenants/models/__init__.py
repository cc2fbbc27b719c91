"""The models of tenants, of access to them, and of what belongs to them. Import from here, not from the files."""

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
    index,
    part_of,
    unique,
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
