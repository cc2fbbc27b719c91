"""The admin of activities: what waits and why, what happened, and the buttons of an operator."""

from activities.admin import activity, alerts, records  # noqa: F401  # each registers its models
