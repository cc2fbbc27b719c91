"""Alerts to a program, signed after Standard Webhooks. `webhook-id` is that of the delivery, in every attempt: receivers recognise it."""

from __future__ import annotations

import orjson

from activities.alerts.messages import Message
from activities.alerts.posting import post
from activities.alerts.targets import Target
from agents.webhook_signing import signed_headers

EVENT = "alert.raised"


def send(message: Message, target: Target) -> None:
    """Post it once. Raises a `DeliveryProblem`. May be repeated."""
    body = orjson.dumps(payload(message))
    headers = signed_headers(message_id=str(message.delivery_id), body=body, secrets=target.secrets)
    post(target, body, headers)


def payload(message: Message) -> dict[str, object]:
    return {
        "type": EVENT,
        "timestamp": message.created_at,
        "data": {
            "id": message.alert_id,
            "kind": message.kind,
            "severity": message.severity,
            "title": message.title,
            "body": message.body,
            "activity": message.activity_id,
            "facts": message.facts,
            "tenant": message.tenant,
            "created_at": message.created_at,
        },
    }
