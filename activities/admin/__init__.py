"""The admin of activities: what waits and why, what happened, and the buttons of an operator."""

from activities.admin import (  # each registers its models
    activity,
    alerts,
    approvals,
    dead_letters,
    mailboxes,
    records,
)
