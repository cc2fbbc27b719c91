"""Backends of notifications: email, Slack and webhooks, and the encrypted targets of channels.

Emails are plain text, digests also HTML, sent through the server of EMAIL_URL. A message whose connection broke while it was sent may have
arrived: it is `Unclear`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from smtplib import SMTPException, SMTPRecipientsRefused, SMTPResponseException
from typing import Any, Self
from urllib.parse import urlsplit
from uuid import UUID

import orjson
from django.conf import settings
from django.core import signing
from django.core.exceptions import ValidationError
from django.core.mail import EmailMultiAlternatives, get_connection
from django.core.validators import validate_email
from django.template.loader import render_to_string

from activities.models import NotificationChannel
from activities.models.alert import AlertKind, ChannelKind
from agents import credentials, outbound, webhook_signing
from agents.exceptions import AgentError, ConfigurationError, OutboundRefused
from agents.outbound import OutboundResponse, urls
from agents.outbound.client import retry_after_seconds
from agents.redaction import excerpt
from agents.webhook_signing import sign


def send_mail(message: Message, target: Target) -> None:
    """Send the email once. Raises a `DeliveryProblem`."""
    if not settings.EMAIL_URL:
        raise Refused("Cannot send email: EMAIL_URL is not set.")
    connection = get_connection(fail_silently=False)
    try:
        connection.open()
    except (OSError, SMTPException) as error:
        raise NotDelivered(f"The mail server could not be reached: {excerpt(str(error))}") from error
    try:
        connection.send_messages([compose_mail(message, target)])
    except (SMTPRecipientsRefused, SMTPResponseException) as error:
        raise _refusal_of_server(error) from error
    except (OSError, SMTPException) as error:
        raise Unclear(f"The mail server did not confirm the mail: {excerpt(str(error))}") from error
    finally:
        # The outcome is known already; errors while closing do not change it.
        with suppress(OSError, SMTPException):
            connection.close()


def compose_mail(message: Message, target: Target) -> EmailMultiAlternatives:
    is_digest = message.kind == AlertKind.DIGEST
    lines = [message.body] if is_digest else [message.title, message.body, message.footer, message.link]
    mail = EmailMultiAlternatives(
        subject=message.title if is_digest else f"[{message.severity}] {message.title}",
        body="\n\n".join(line for line in lines if line) + "\n",
        to=addresses_of(target),
        headers={
            # The same in every attempt, so that a mail system may recognise a repetition.
            "Message-ID": f"<{message.delivery_id}@{urlsplit(site()).hostname}>",
            "Auto-Submitted": "auto-generated",  # prevents out-of-office replies
        },
    )
    if is_digest:
        mail.attach_alternative(render_to_string("mail/digest.html", dict(message.facts)), "text/html")
    return mail


def _refusal_of_server(error: SMTPRecipientsRefused | SMTPResponseException) -> DeliveryProblem:
    answers = [(getattr(error, "smtp_code", 0), getattr(error, "smtp_error", ""))]
    if isinstance(error, SMTPRecipientsRefused):
        answers = list(error.recipients.values())
    code, text = min(answers)  # a temporary refusal comes first, because it is worth a retry
    details = excerpt(text)
    message = f"The mail server answered {code}" + (f": {details}" if details else ".")
    if 400 <= code < 500:
        return NotDelivered(message)
    return Refused(message) if code >= 500 else Unclear(message)


# Messages: an alert as text. External text is made harmless here, for all channels.


# Literal paths, because to reverse them a worker would have to load all views.
PAGE = "/admin/activities/alert/{}/change/"
ITEM_PAGE = "/inbox/{}/"
LONGEST_BODY = 4_000  # the page of the alert has the rest


@dataclass(frozen=True, slots=True)
class Message:
    """One alert for one channel. `title` is one line; `body` has line breaks but no other control characters."""

    delivery_id: UUID
    tenant_id: UUID
    alert_id: UUID
    kind: str
    severity: str
    title: str
    body: str
    activity_id: UUID | None
    facts: Mapping[str, Any]
    tenant: str  # its slug
    created_at: datetime
    link: str  # empty if there is no page that the receiver may open

    @classmethod
    def of(cls, claim: Any) -> Self:
        """Make a message from a row of `sql/claim_delivery.sql`."""
        return cls(
            delivery_id=claim.id,
            tenant_id=claim.tenant_id,
            alert_id=claim.alert_id,
            kind=claim.kind,
            severity=claim.severity,
            title=excerpt(claim.title, limit=300),
            body=printable(claim.body),
            activity_id=claim.activity_id,
            facts=claim.facts,
            tenant=claim.tenant,
            created_at=claim.created_at,
            link=_link_of(claim),
        )

    @property
    def footer(self) -> str:
        """The origin of the alert, in one line."""
        about = f", activity {self.activity_id}" if self.activity_id else ""
        return f"{self.kind}, tenant {self.tenant}{about}, {self.created_at:%Y-%m-%d %H:%M:%S} UTC"


def _link_of(claim: Any) -> str:
    """Link the platform's channels to the alert, and those of a tenant to the item to decide."""
    if claim.channel_id is None:
        return site() + PAGE.format(claim.alert_id)
    if claim.kind == AlertKind.DECISION:
        return f"{site()}{ITEM_PAGE.format(claim.activity_id)}?tenant={claim.tenant}"
    return ""


def printable(text: str) -> str:
    """Return the text, shortened, with its line breaks but without control characters and direction marks."""
    clean = "".join(character if character.isprintable() or character == "\n" else " " for character in text)
    clean = clean.strip()
    return clean if len(clean) <= LONGEST_BODY else clean[: LONGEST_BODY - 1] + "…"


def site() -> str:
    """Return the public base URL of the web process."""
    return settings.ORCHESTRATOR_PUBLIC_URL.rstrip("/") or f"http://127.0.0.1:{settings.PORT}"


# Slack, through an incoming webhook.
#
# Slack renders `<...>` as links and mentions, and compatible servers render Markdown and `@names`. An agent's text must not produce any of
# these, so their beginnings are escaped or broken up.


#: Before names, between a scheme and its address, between the two halves of a Markdown link.
_STARTS = re.compile(r"[@#](?=\w)|:(?=//)|\](?=\()")
_BREAK = "\u200b"  # invisible, and ends a word
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def send_to_slack(message: Message, target: Target) -> None:
    """Post the message once. Raises a `DeliveryProblem`. Slack does not recognise repetitions."""
    post(target, orjson.dumps(slack_payload(message)))


def slack_payload(message: Message) -> dict[str, object]:
    lines = [f"[{message.severity}] {message.title}", message.body, message.footer]
    text = "\n".join(inert(line) for line in lines if line)
    if message.link:
        text += f"\n<{message.link}>"
    payload: dict[str, object] = {
        "text": text,
        "mrkdwn": False,
        "parse": "none",
        "link_names": False,
        "unfurl_links": False,
        "unfurl_media": False,
    }
    if message.kind == AlertKind.DECISION and settings.SLACK_SIGNING_SECRET:
        payload["blocks"] = _question_blocks(message)
    return payload


# Questions in Slack have buttons. The value of a button is signed, and names the item with its version and the displayed text, so that a
# decision is refused if either has changed.


APPROVE, REJECT = "approve", "reject"  # the ids of the buttons, and their decisions
NOTES = "notes"
_LONGEST_SECTION = 2_900  # characters; Slack takes 3000
_SHOWN_SALT = "slack-question"


def seal_question(tenant_id: UUID, activity_id: UUID, version: int, content_ref: str) -> str:
    """Return the value of the buttons of a message. `content_ref` names the displayed text; empty: there is none."""
    return signing.dumps([tenant_id.hex, activity_id.hex, version, content_ref], salt=_SHOWN_SALT)


def unseal_question(sealed: str) -> tuple[UUID, UUID, int, str] | None:
    """Return the tenant, the item, its version and its displayed text, or None if the signature is invalid."""
    try:
        tenant, activity, version, content_ref = signing.loads(sealed, salt=_SHOWN_SALT)
    except signing.BadSignature:
        return None
    return UUID(tenant), UUID(activity), version, content_ref


def _question_blocks(message: Message) -> list[dict[str, object]]:
    text = inert(message.body)
    pieces = [text[start : start + _LONGEST_SECTION] for start in range(0, len(text), _LONGEST_SECTION)]
    blocks: list[dict[str, object]] = [
        {"type": "section", "text": _plain(piece)}
        for piece in (inert(message.title), *pieces)
        if piece.strip()
    ]
    buttons: list[dict[str, object]] = [
        {"type": "button", "action_id": "open", "text": _plain("Open"), "url": message.link}
    ]
    if message.activity_id is not None and message.facts.get("decides"):
        value = seal_question(
            message.tenant_id, message.activity_id, message.facts["version"], message.facts["content_ref"]
        )
        blocks.append(
            {
                "type": "input",
                "block_id": NOTES,
                "optional": True,
                "label": _plain("Notes; required to request changes"),
                "element": {"type": "plain_text_input", "action_id": NOTES, "multiline": True},
            }
        )
        buttons = [
            _decision_button("Approve", APPROVE, value, "primary", message.title),
            _decision_button("Request changes", REJECT, value, "danger", message.title),
            *buttons,
        ]
    blocks.append({"type": "actions", "elements": buttons})
    return [*blocks, {"type": "context", "elements": [_plain(inert(message.footer))]}]


def _decision_button(label: str, action: str, value: str, style: str, title: str) -> dict[str, object]:
    confirmation = {
        "title": _plain(f"{label}?"),
        "text": _plain(inert(title)[:290]),  # Slack takes 300
        "confirm": _plain(label),
        "deny": _plain("Cancel"),
    }
    return {
        "type": "button",
        "action_id": action,
        "text": _plain(label),
        "style": style,
        "value": value,
        "confirm": confirmation,
    }


def _plain(text: str) -> dict[str, object]:
    return {"type": "plain_text", "text": text, "emoji": False}


def inert(text: str) -> str:
    """Return the text so that it renders as plain text: without links, mentions or formatting."""
    return _STARTS.sub(lambda match: match[0] + _BREAK, text).translate(_ENTITIES)


# Webhooks, signed by the Standard Webhooks scheme. `webhook-id` is the delivery's id in every attempt, so receivers recognise repetitions.


EVENT = "alert.raised"


def send_to_webhook(message: Message, target: Target) -> None:
    """Post the alert once. Raises a `DeliveryProblem`. May be repeated."""
    body = orjson.dumps(webhook_payload(message))
    headers = sign(message_id=str(message.delivery_id), body=body, secrets=target.secrets)
    post(target, body, headers)


def webhook_payload(message: Message) -> dict[str, object]:
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


# Errors of a delivery. They differ in whether the message may be sent again.


class DeliveryProblem(Exception):
    """A message was not delivered, or perhaps not."""


class Refused(DeliveryProblem):
    """It did not arrive, and a retry would not help."""


class NotDelivered(DeliveryProblem):
    """It did not arrive, but a retry may succeed."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        #: Seconds, from the receiver's answer. Nothing may be sent to the receiver before that.
        self.retry_after = retry_after


class Unclear(DeliveryProblem):
    """It may have arrived. Only a receiver that recognises repetitions may get it again."""


# The HTTP call to a receiver of alerts.


SECONDS = 10.0  # for the whole call, from the name lookup to the last byte
MOST_BYTES = 64 * 1024  # of an answer, whose content does not matter

_RETRYABLE = frozenset({408, 425, 429})


def post(
    target: Target,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    *,
    seconds: float | None = None,
) -> None:
    """Post the body. Raises a `DeliveryProblem` unless the receiver has accepted it."""
    all_headers = {
        "Content-Type": "application/json",
        # The receiver may close a reused connection at any moment, and then it is unclear whether the message arrived.
        "Connection": "close",
        **(headers or {}),
    }
    try:
        response = outbound.send(
            "POST",
            target.address,
            headers=all_headers,
            body=body,
            deadline_seconds=seconds or SECONDS,
            max_bytes=MOST_BYTES,
            purpose=outbound.NOTIFICATIONS,
            only_status=True,
        )
    except AgentError as error:
        raise _problem_of(error) from error
    if not 200 <= response.status < 300:
        raise _refusal(response, target)


def _problem_of(error: AgentError) -> DeliveryProblem:
    if not error.retryable:
        return Refused(str(error))
    return NotDelivered(str(error)) if error.nothing_sent else Unclear(str(error))


def _refusal(response: OutboundResponse, target: Target) -> DeliveryProblem:
    details = excerpt(response.body, secrets=(target.address, *target.secrets))
    message = f"The receiver answered with status {response.status}" + (f": {details}" if details else ".")
    if response.status in _RETRYABLE or response.status >= 500:
        return NotDelivered(message, retry_after=retry_after_seconds(response.headers.get("retry-after")))
    return Refused(message)


# Targets: the address of a channel and its signing secrets. Stored encrypted, decrypted only to send, never shown again.

MOST_ADDRESSES = 20


@dataclass(frozen=True, slots=True)
class Target:
    """A URL, or email addresses separated by commas. For a webhook also the signing secrets, newest first."""

    address: str
    secrets: tuple[str, ...] = ()


class InvalidTarget(ValueError):
    """The target cannot be used. The text says why."""


def check_target(kind: str, address: str) -> None:
    """Raise `InvalidTarget` if nothing can be sent to the address. May resolve a host name, so must not run inside a transaction."""
    if kind == ChannelKind.EMAIL:
        _check_mail(address)
        return
    try:
        outbound.check_url(address, purpose=outbound.NOTIFICATIONS)
    except OutboundRefused as error:
        raise InvalidTarget(str(error)) from error


def put_target(channel: NotificationChannel, address: str) -> None:
    """Set the target of the channel, without saving it. A webhook keeps its secrets, or gets one if it has none that can be read."""
    own_secrets = _secrets_of(channel)
    if channel.kind == ChannelKind.WEBHOOK and not own_secrets:
        own_secrets = (webhook_signing.new_secret(),)
    _seal(channel, Target(address, own_secrets))
    channel.target_shown = _show_target(channel.kind, address)


def renew_secret(channel: NotificationChannel) -> str:
    """Set and return a new secret of a webhook, without saving it. The previous one also signs until the next renewal."""
    target, new = open_target(channel), webhook_signing.new_secret()
    _seal(channel, Target(target.address, (new, *target.secrets[:1])))
    return new


def open_target(channel: NotificationChannel) -> Target:
    """Decrypt the target. Raises `agents.exceptions.ConfigurationError` if its encryption key is gone."""
    return unseal_target(channel.tenant_id, channel.pk, channel.target_sealed)


def unseal_target(tenant_id: UUID, channel_id: UUID, sealed: str) -> Target:
    """Decrypt a target from the columns of its row, like `open_target`."""
    stored = credentials.unseal(sealed, context=context_of(tenant_id, channel_id))
    return Target(stored["address"], tuple(stored["secrets"].split()))


def platform_target(kind: str) -> Target | None:
    """Return the target of the platform's own channel of this kind, if there is one."""
    address = {ChannelKind.SLACK: settings.SLACK_WEBHOOK_URL, ChannelKind.EMAIL: settings.ALERT_EMAIL}.get(
        ChannelKind(kind), ""
    )
    return Target(address) if address else None


def addresses_of(target: Target) -> list[str]:
    return [address for part in target.address.split(",") if (address := part.strip())]


def _secrets_of(channel: NotificationChannel) -> tuple[str, ...]:
    try:
        return open_target(channel).secrets if channel.target_sealed else ()
    except ConfigurationError:
        return ()  # Their encryption key is gone.


def _check_mail(text: str) -> None:
    addresses = addresses_of(Target(text))
    if not 0 < len(addresses) <= MOST_ADDRESSES:
        raise InvalidTarget(f"must be 1 to {MOST_ADDRESSES} email addresses, separated by commas")
    for address in addresses:
        try:
            validate_email(address)
        except ValidationError as error:
            raise InvalidTarget(f"{address!r} is not an email address") from error


def _show_target(kind: str, address: str) -> str:
    if kind == ChannelKind.EMAIL:
        masked = (
            f"{name[:1]}…@{host}"
            for name, _, host in (a.rpartition("@") for a in addresses_of(Target(address)))
        )
        return ", ".join(masked)[:300]
    return urls.read(address).place  # without the path, which is secret in Slack's webhook URLs


def _seal(channel: NotificationChannel, target: Target) -> None:
    fields = {"address": target.address, "secrets": " ".join(target.secrets)}
    channel.target_sealed = credentials.seal(fields, context=context_of(channel.tenant_id, channel.pk))


def context_of(tenant_id: UUID, channel_id: UUID) -> str:
    return f"notification_channel:{tenant_id}:{channel_id}:target"
