"""The admin of the registry of agents, of what tenants set for themselves, and of what their agents know and remember."""

from agents.admin import configurations, platform, registry  # each registers its models
