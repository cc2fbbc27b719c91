"""The admin of activities: their state and history, and the actions of operators."""

from activities.admin import activity, alerts, approvals, dead_letters, records
