"""Agents, what is set for them, what they remember and what they may know. Import from here; the files are an inner matter."""

from agents.models.registry import (
    CALLED_BY_URL,
    ROLE_PATTERN,
    Adapter,
    Agent,
    AgentConfig,
    AgentVersionDeployment,
    Health,
    PlatformConfig,
    role_validator,
)
from agents.models.session import AgentSession, EndReason
from agents.models.skill import Skill, SkillKind

__all__ = (
    "CALLED_BY_URL",
    "ROLE_PATTERN",
    "Adapter",
    "Agent",
    "AgentConfig",
    "AgentSession",
    "AgentVersionDeployment",
    "EndReason",
    "Health",
    "PlatformConfig",
    "Skill",
    "SkillKind",
    "role_validator",
)
