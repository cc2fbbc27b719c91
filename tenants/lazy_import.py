"""Imports large libraries, which many processes never use, with their first use.

    if TYPE_CHECKING:
        import pymongo
    else:
        pymongo = lazy_import("pymongo")

Python evaluates the class after an `except` only when there is an error, so even that does not import a library in advance.
`LazyLoader` of the standard library is not enough, because it imports the packages around a module at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _Library:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


def lazy_import(name: str) -> Any:
    """Return a proxy for the module of this name, which imports it when an attribute is read."""
    return _Library(name)
