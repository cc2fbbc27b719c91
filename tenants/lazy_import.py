"""Imports large libraries, which many processes never use, with their first use, and imports other libraries without them.

    if TYPE_CHECKING:
        import pymongo
    else:
        pymongo = lazy_import("pymongo")

Python evaluates the class after an `except` only when there is an error, so even that does not import a library in advance.
`LazyLoader` of the standard library is not enough, because it imports the packages around a module at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def import_without(name: str) -> Iterator[None]:
    """Let imports of this module fail, for a library that imports it only if it is installed. If it is loaded already, it stays."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # importing it then raises ModuleNotFoundError
    try:
        yield
    finally:
        del sys.modules[name]
