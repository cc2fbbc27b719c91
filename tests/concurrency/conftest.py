"""The engine's fixtures, here too."""

from tests.integration.conftest import engine, one_at_a_time

__all__ = ("engine", "one_at_a_time")
