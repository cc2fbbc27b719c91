"""Editing a result before it is approved: the text that the page offers for it, and what of the result stays beside an edited text.

The page sends the whole text back, edited or not, with a mark of the one that it showed. So an approval whose text is the same is one like
any other, and an edited text is never lost to the wrong button.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from activities import outputs
from activities.exceptions import OutputUnavailable
from activities.models import Activity
from activities.outputs import StoredOutput
from console.refusals import Refused
from tenants.context import tenant_scope

MOST_CHARACTERS = 200_000
AWAY = "The store of outputs does not answer. Nothing was done; try again in a moment."
LOST = "The result is not there any more. Nothing was done."


@dataclass(frozen=True, slots=True)
class Draft:
    """A text to edit, and the mark by which it is known again."""

    text: str
    mark: str


def with_plain_lines(text: str) -> str:
    """Browsers send line ends as two characters."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def mark_of(text: str) -> str:
    """The same for texts that differ in nothing but their line ends and the space around them."""
    return hashlib.sha256(with_plain_lines(text).encode()).hexdigest()


def draft_of(output: StoredOutput | None) -> Draft | None:
    """What there is to edit; None for what is no text, or too long."""
    if output is None or not output.content_type.startswith("text/"):
        return None
    text = with_plain_lines(output.content or "")
    return Draft(text, mark_of(text)) if 0 < len(text) <= MOST_CHARACTERS else None


def rest_of(tenant_id: UUID, item_id: UUID) -> dict[str, Any]:
    """What of the result that an item asks about stays beside an edited text. Not inside a transaction. Raises `Refused`."""
    with tenant_scope(tenant_id):
        rows = Activity.objects.for_tenant(tenant_id).filter(pk=item_id)
        reference: UUID | None = rows.values_list("input_ref", flat=True).first()
    if reference is None:
        return {}
    try:
        found = outputs.read(tenant_id, reference)
    except OutputUnavailable as error:
        raise Refused(AWAY, status=503) from error
    if found is None:
        raise Refused(LOST)
    return {"data": found.data, "content_type": found.content_type}
