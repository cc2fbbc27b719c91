"""Libraries that are large and that many a process never uses: loaded with the first use of something in them, and not with its user.

    if TYPE_CHECKING:
        import pymongo
    else:
        pymongo = lazy_import("pymongo")

Python looks at the class after an `except` when an error has got there, so even that does not load a library in advance.
`LazyLoader` of the standard library loads the packages around a module at once.
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
    """The module of this name, as far as one may take things from it."""
    return _Library(name)
