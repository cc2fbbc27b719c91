"""What changed between two looks at an object, field by field, as the audit trail may keep it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenants.audit.redaction import MOST_MEMBERS, one_line, redacted

Changes = dict[str, list[Any]]


def between(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Changes:
    """`{field: [before, after]}` of the fields that differ. None stands for an object that was not, or is no more, there.

    What differs only in what may not be kept, such as a secret or a text, is still named.
    """
    old, new = before or {}, after or {}
    differing = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    return {
        one_line(name, 100): [redacted(name, old.get(name)), redacted(name, new.get(name))]
        for name in differing[:MOST_MEMBERS]
    }
