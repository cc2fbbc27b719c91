"""Finds the examples: next to the apps in a checkout, and inside of this package in an installation."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
#: A wheel has them in this package, because `examples` is too common a name at the top of an environment.
_INSTALLED = _PACKAGE / "examples"
EXAMPLES = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent / "examples"
