"""Leaving: what is wanted soon does not wait for a batch any longer, whether it is in one or not. A late answer counts for nothing."""

from __future__ import annotations

from django.db.models import QuerySet
from django.db.models.functions import Now

from activities.batches import settling
from activities.models import BatchItem
from activities.models.batch import OPEN_ITEMS
from tenants.context import system_scope

PAGE = 500

WHY = "It is wanted soon and was not answered by its batch yet; it goes on at once."


def due() -> QuerySet[BatchItem]:
    """What has to leave, of all tenants."""
    return BatchItem.objects.filter(state__in=OPEN_ITEMS, leave_at__lte=Now())


def leave() -> int:
    """Move what is due, a page of it. Returns how many."""
    with system_scope():
        items = list(due().defer("body", "begun").order_by("leave_at")[:PAGE])
    for item in items:
        settling.move(item, WHY)
    return len(items)
