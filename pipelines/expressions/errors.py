"""The one error of expressions."""

from __future__ import annotations

from typing import ClassVar


class ExpressionError(ValueError):
    """The expression cannot be read, or has no value with this data. `position` is the index of a character."""

    code: ClassVar[str] = "invalid_expression"

    def __init__(self, position: int, message: str) -> None:
        super().__init__(position, message)
        self.position = position
        self.message = message

    def __str__(self) -> str:
        return f"character {self.position + 1}: {self.message}"
