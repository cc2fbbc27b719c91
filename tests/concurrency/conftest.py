"""The fixtures of the engine, also for these tests."""

from tests.integration.conftest import acme, agent_accepts, engine, one_at_a_time

__all__ = ("acme", "agent_accepts", "engine", "one_at_a_time")
