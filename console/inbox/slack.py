"""Handles decisions from Slack: the requests that the buttons of a question send.

Slack signs the time and raw body of each request with the app's secret. A request takes effect once, because its signature is stored in the
transaction of the decision. The Slack user acts as the member they are linked to, with that member's present rights, through the function
that the inbox page calls. The button's sealed value names the version and text that the message displayed: if the item has changed since,
nothing is decided, and the person is told what happened.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from typing import Any
from uuid import UUID

import orjson
from django.conf import settings
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from activities.models import Activity
from activities.notifications import backends
from activities.notifications.backends import APPROVE, NOTES, REJECT, DeliveryProblem, Target
from console.inbox import actions
from console.inbox.actions import OPEN
from console.page import Refused, refuse_when_busy
from tenants import clock, limiter, members
from tenants.audit import address_of
from tenants.context import APP, tenant_scope
from tenants.limiter import Bucket
from tenants.models import IdempotentRequest
from tenants.principals import Principal

logger = logging.getLogger(__name__)

TOLERANCE_SECONDS = 300.0  # between Slack's and PostgreSQL's clock, as Slack recommends
MOST_BYTES = 256 * 1024  # of a request: a message with its blocks, and the notes
ANSWER_SECONDS = 2.0  # Slack waits for three
LONGEST_NOTES = 3_000  # the limit of Slack's field
_TIMESTAMP = re.compile(r"[0-9]{1,12}")

NOT_OURS = "This button was not created by Orchestrator. Nothing was done."
NOT_LINKED = "Your Slack user is not linked to a member, so you cannot decide here. Open the item, or ask an operator to link {}."
CHANGED = "The text has changed since this message was sent. Nothing was done; open the item to see the current text."


@csrf_exempt
@require_POST
def decide(request: HttpRequest) -> HttpResponse:
    """Handle the interactivity URL of the Slack app. The response is 200 for any decision; the person is notified in Slack."""
    if not settings.SLACK_SIGNING_SECRET:
        raise Http404
    limit = limiter.take_with_fallback(Bucket(f"slack:{address_of(request)}", rate=20.0, burst=100.0))
    if not limit.allowed:
        return HttpResponse(status=429, headers={"Retry-After": str(int(limit.retry_after) + 1)})
    if int(request.META.get("CONTENT_LENGTH") or 0) > MOST_BYTES:
        return HttpResponse(status=413)
    body = request.body  # the raw bytes, which the signature covers
    signature = request.headers.get("X-Slack-Signature", "")
    if not is_signed(body, request.headers.get("X-Slack-Request-Timestamp", ""), signature):
        return HttpResponse("The signature is invalid or too old.", status=401, content_type="text/plain")
    press = Press.read(body)
    if press is not None:
        _respond(press, *_decide_and_describe(press, signature))
    return HttpResponse(status=200)


def is_signed(body: bytes, timestamp: str, signature: str) -> bool:
    """Return whether Slack signed the request recently, by PostgreSQL's clock. False for malformed input."""
    if not _TIMESTAMP.fullmatch(timestamp) or not signature.isascii():
        return False
    if abs(clock.now().timestamp() - int(timestamp)) > TOLERANCE_SECONDS:
        return False
    signed = b"v0:" + timestamp.encode() + b":" + body
    expected = hmac.new(settings.SLACK_SIGNING_SECRET.encode(), signed, hashlib.sha256).hexdigest()
    return hmac.compare_digest(f"v0={expected}", signature)


class Press:
    """The press of a button that decides."""

    def __init__(self, action: str, value: str, user: str, notes: str, answer_at: str) -> None:
        self.action, self.value, self.user, self.notes, self.answer_at = action, value, user, notes, answer_at

    @classmethod
    def read(cls, body: bytes) -> Press | None:
        """Parse a request; None if it decides nothing, such as the button that opens the item."""
        try:
            sent = orjson.loads(QueryDict(body).get("payload", ""))
            action = sent["actions"][0]
            if sent["type"] != "block_actions" or action["action_id"] not in (APPROVE, REJECT):
                return None
            typed = sent.get("state", {}).get("values", {}).get(NOTES, {}).get(NOTES, {}).get("value") or ""
            return cls(
                action["action_id"],
                str(action["value"]),
                f"{sent['user']['team_id']}/{sent['user']['id']}",
                str(typed)[:LONGEST_NOTES],
                str(sent.get("response_url") or ""),
            )
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            return None


def _decide_and_describe(press: Press, signature: str) -> tuple[str, bool]:
    """Return the reply to the person, and whether it replaces the message because the item is closed."""
    question = backends.unseal_question(press.value)
    if question is None:
        return NOT_OURS, False
    tenant_id, item_id, version, content_ref = question
    try:
        with refuse_when_busy(), tenant_scope(tenant_id):
            # Of two concurrent equal requests the second waits for the first.
            digest = hashlib.sha256(f"slack\n{signature}".encode()).hexdigest()
            rows = IdempotentRequest.objects.for_tenant(tenant_id)
            _, is_new = rows.get_or_create(
                tenant_id=tenant_id,
                digest=digest,
                defaults={"request_digest": digest, "status_code": 200, "body": b""},
            )
            if not is_new:
                return "", False  # a repeated request: the first one was answered
            who = members.member_of_slack(tenant_id, press.user)
            if who is None:
                return NOT_LINKED.format(press.user), False
            return _perform(who, item_id, version, content_ref, press)
    except Refused as refusal:
        return refusal.reason, False


def _perform(who: Principal, item_id: UUID, version: int, content_ref: str, press: Press) -> tuple[str, bool]:
    """Perform the decision in the caller's `tenant_scope`. A refusal rolls it back but keeps the record of the request."""
    sent: dict[str, Any] = {"action": press.action, "version": version, "notes": press.notes}
    try:
        displayed_version, answer = actions.read(sent)
        with transaction.atomic(using=APP):
            actions.lock(who.tenant_id, {item_id})
            rows = Activity.objects.for_tenant(who.tenant_id).filter(pk=item_id)
            reference = rows.values_list("input_ref", flat=True).first()
            if str(reference or "") != content_ref:
                raise Refused(CHANGED)
            result = actions.perform(
                who, item_id, displayed_version, answer, channel="slack", slack_user=press.user
            )
    except Refused as refusal:
        return refusal.reason, False
    except Http404:
        return actions.NO_SUCH_ITEM, False
    is_closed = not rows.filter(status__in=OPEN).exists()
    # A reply that does not replace the message is for the person alone.
    by = f" by {who.actor.partition(':')[2]}" if is_closed else ""
    return f"{result.words}{by}: {result.name}", is_closed


def _respond(press: Press, words: str, is_closed: bool) -> None:
    """Post the reply to the request's response URL. The decision stands even if this fails."""
    if not words or not press.answer_at:
        return
    answer = {
        "text": backends.inert(words),
        "response_type": "in_channel" if is_closed else "ephemeral",
        "replace_original": is_closed,
    }
    try:
        backends.post(Target(press.answer_at), orjson.dumps(answer), seconds=ANSWER_SECONDS)
    except DeliveryProblem as problem:
        logger.warning(
            "Slack could not be answered",
            extra={"action": "slack_not_answered", "problem": str(problem)[:200]},
        )
