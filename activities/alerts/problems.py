"""What may come of a message that did not simply arrive. The distinction decides whether it may be repeated."""

from __future__ import annotations


class DeliveryProblem(Exception):
    """A message was not, or perhaps not, delivered."""


class Refused(DeliveryProblem):
    """It did not arrive, and trying again would not help."""


class NotDelivered(DeliveryProblem):
    """It did not arrive, and may next time."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = (
            retry_after  # seconds, as the receiver asked; nothing else may be sent there before
        )


class Unclear(DeliveryProblem):
    """It may have arrived. Only a receiver that recognises repetitions may be told again."""
