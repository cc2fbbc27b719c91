"""The admin of the registry of agents, and of tenants' settings, sessions and skills for agents."""

from agents.admin import configurations, platform, registry  # each registers its models
