"""The fixtures of the engine, also for these tests."""

from tests.integration.conftest import engine, one_at_a_time

__all__ = ("engine", "one_at_a_time")
