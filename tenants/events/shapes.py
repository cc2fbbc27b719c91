"""An event as programs get it: in a page, in a stream, and in a webhook's body."""

from __future__ import annotations

from typing import Any

from tenants.events.models import Event


def shown(event: Event) -> dict[str, Any]:
    """For pages and streams. `id` is where to go on."""
    return {
        "id": event.number,
        "kind": event.kind,
        "at": event.at,
        "activity": event.activity_id,
        "pipeline_run": event.pipeline_run_id,
        "data": event.data,
    }


def body_of(delivery: Any) -> dict[str, Any]:
    """A webhook's body, after the recommendation of Standard Webhooks. From a row of a claimed delivery with its event."""
    if delivery.event_number is None:
        about = {"webhook": delivery.endpoint_id}
        return {"type": delivery.kind, "timestamp": delivery.created_at, "data": about}
    about = {
        "id": delivery.event_number,
        "activity": delivery.activity_id,
        "pipeline_run": delivery.pipeline_run_id,
    }
    return {"type": delivery.event_kind, "timestamp": delivery.at, "data": {**delivery.data, **about}}
