"""The admin of activities: their state and history, and the actions of operators."""

from activities.admin import (  # each registers its models
    activity,
    alerts,
    approvals,
    dead_letters,
    mailboxes,
    records,
)
