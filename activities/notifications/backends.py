"""Alerts by mail, as plain text, and digests also as HTML. EMAIL_URL says through which server.

An answer of the server is final. A connection that breaks while the mail is handed over leaves open whether it arrived: `Unclear`.
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
    """Send the mail once. Raises a `DeliveryProblem`."""
    if not settings.EMAIL_URL:
        raise Refused("No mail can be sent: EMAIL_URL is not set.")
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
        # The server has said what it has to say; how it says goodbye changes nothing.
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
            # The same for every attempt, so that a mail system may recognise a repetition.
            "Message-ID": f"<{message.delivery_id}@{urlsplit(site()).hostname}>",
            "Auto-Submitted": "auto-generated",  # nobody's absence shall answer it
        },
    )
    if is_digest:
        mail.attach_alternative(render_to_string("mail/digest.html", dict(message.facts)), "text/html")
    return mail


def _refusal_of_server(error: SMTPRecipientsRefused | SMTPResponseException) -> DeliveryProblem:
    answers = [(getattr(error, "smtp_code", 0), getattr(error, "smtp_error", ""))]
    if isinstance(error, SMTPRecipientsRefused):
        answers = list(error.recipients.values())
    code, text = min(answers)  # one that may take it later is worth another try
    shown = excerpt(text)
    message = f"The mail server answered {code}" + (f": {shown}" if shown else ".")
    if 400 <= code < 500:
        return NotDelivered(message)
    return Refused(message) if code >= 500 else Unclear(message)


# What people read: an alert as one message, its outside text made harmless before any channel gets to see it.


# Written out: to make it from the table of addresses, a worker would have to load every page of the site.
PAGE = "/admin/activities/alert/{}/change/"
ITEM_PAGE = "/inbox/{}/"
LONGEST_BODY = 4_000  # more is read where the alert is shown


@dataclass(frozen=True, slots=True)
class Message:
    """One alert for one channel. `title` is one line, `body` has line breaks and nothing else that does not print."""

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
    link: str  # empty when there is no page that the receiver may see

    @classmethod
    def of(cls, claim: Any) -> Self:
        """From a row of `sql/claim_delivery.sql`."""
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
        """Where it comes from, in one line."""
        about = f", activity {self.activity_id}" if self.activity_id else ""
        return f"{self.kind}, tenant {self.tenant}{about}, {self.created_at:%Y-%m-%d %H:%M:%S} UTC"


def _link_of(claim: Any) -> str:
    """Members see the item that they are asked about; the platform's own people see the alert."""
    if claim.channel_id is None:
        return site() + PAGE.format(claim.alert_id)
    if claim.kind == AlertKind.DECISION:
        return f"{site()}{ITEM_PAGE.format(claim.activity_id)}?tenant={claim.tenant}"
    return ""


def printable(text: str) -> str:
    """The text with its line breaks, but without control characters and marks that reverse its direction."""
    shown = "".join(character if character.isprintable() or character == "\n" else " " for character in text)
    shown = shown.strip()
    return shown if len(shown) <= LONGEST_BODY else shown[: LONGEST_BODY - 1] + "…"


def site() -> str:
    """Our own address, as others reach it."""
    return settings.ORCHESTRATOR_PUBLIC_URL.rstrip("/") or f"http://127.0.0.1:{settings.PORT}"


# Alerts for Slack, by an incoming webhook.
#
# Slack reads `<...>` as links and mentions, and servers that imitate it read Markdown and `@names`. Nothing of that may come out of an
# agent's text: what could start one is escaped or broken up.


#: Before names, between a scheme and its address, between the two halves of a Markdown link.
_STARTS = re.compile(r"[@#](?=\w)|:(?=//)|\](?=\()")
_BREAK = "\u200b"  # takes no room, and ends a word
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def send_to_slack(message: Message, target: Target) -> None:
    """Post it once. Raises a `DeliveryProblem`. Slack does not recognise repetitions."""
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


# A question in Slack has buttons. What a button sends back is signed by us, and names the item with its version and the text that the
# message shows: the decision is made about that, or not at all.


APPROVE, REJECT = "approve", "reject"  # the ids of the buttons, and what they decide
NOTES = "notes"
_LONGEST_SECTION = 2_900  # characters; Slack takes 3000
_SHOWN_SALT = "slack-question"


def seal_question(tenant_id: UUID, activity_id: UUID, version: int, content_ref: str) -> str:
    """What stands behind the buttons of a message. `content_ref` is the text that it shows; empty: there is none."""
    return signing.dumps([tenant_id.hex, activity_id.hex, version, content_ref], salt=_SHOWN_SALT)


def unseal_question(sealed: str) -> tuple[UUID, UUID, int, str] | None:
    """The tenant, the item, its version and its text as they were shown; None for what did not come from us."""
    try:
        tenant, activity, version, content_ref = signing.loads(sealed, salt=_SHOWN_SALT)
    except signing.BadSignature:
        return None
    return UUID(tenant), UUID(activity), version, content_ref


def _question_blocks(message: Message) -> list[dict[str, object]]:
    text = inert(message.body)
    pieces = [text[start : start + _LONGEST_SECTION] for start in range(0, len(text), _LONGEST_SECTION)]
    blocks = [_section(piece) for piece in (inert(message.title), *pieces) if piece.strip()]
    buttons: list[dict[str, object]] = [
        {"type": "button", "action_id": "open", "text": _plain("Open"), "url": message.link}
    ]
    if message.activity_id is not None and message.facts.get("decides"):
        shown = seal_question(
            message.tenant_id, message.activity_id, message.facts["version"], message.facts["content_ref"]
        )
        blocks.append(
            {
                "type": "input",
                "block_id": NOTES,
                "optional": True,
                "label": _plain("Notes; needed to send it back"),
                "element": {"type": "plain_text_input", "action_id": NOTES, "multiline": True},
            }
        )
        buttons = [
            _deciding("Approve", APPROVE, shown, "primary", message.title),
            _deciding("Request changes", REJECT, shown, "danger", message.title),
            *buttons,
        ]
    blocks.append({"type": "actions", "elements": buttons})
    return [*blocks, {"type": "context", "elements": [_plain(inert(message.footer))]}]


def _deciding(label: str, action: str, shown: str, style: str, title: str) -> dict[str, object]:
    sure = {
        "title": _plain(f"{label}?"),
        "text": _plain(inert(title)[:290]),  # Slack takes 300
        "confirm": _plain(label),
        "deny": _plain("Not yet"),
    }
    return {
        "type": "button",
        "action_id": action,
        "text": _plain(label),
        "style": style,
        "value": shown,
        "confirm": sure,
    }


def _section(text: str) -> dict[str, object]:
    return {"type": "section", "text": _plain(text)}


def _plain(text: str) -> dict[str, object]:
    return {"type": "plain_text", "text": text, "emoji": False}


def inert(text: str) -> str:
    """Text that stays text: no link, no mention, no formatting by brackets."""
    return _STARTS.sub(lambda found: found[0] + _BREAK, text).translate(_ENTITIES)


# Alerts to a program, signed after Standard Webhooks. `webhook-id` is that of the delivery, in every attempt: receivers recognise it.


EVENT = "alert.raised"


def send_to_webhook(message: Message, target: Target) -> None:
    """Post it once. Raises a `DeliveryProblem`. May be repeated."""
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


# What may come of a message that did not simply arrive. The distinction decides whether it may be repeated.


class DeliveryProblem(Exception):
    """A message was not, or perhaps not, delivered."""


class Refused(DeliveryProblem):
    """It did not arrive, and trying again would not help."""


class NotDelivered(DeliveryProblem):
    """It did not arrive, and may next time."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = (
            retry_after  # seconds, as the receiver asked; nothing else may be sent there before
        )


class Unclear(DeliveryProblem):
    """It may have arrived. Only a receiver that recognises repetitions may be told again."""


# One POST to a receiver of alerts, and what its answer means.


SECONDS = 10.0  # from the name service to the last byte; a receiver of alerts has nothing to think about
MOST_BYTES = 64 * 1024  # of an answer that nobody needs

_RETRYABLE = frozenset({408, 425, 429})
#: The receiver has accepted it; only its answer was too long, or in an encoding that is not read.
_ANSWERED = frozenset({"answer_too_large", "answer_encoded"})


def post(
    target: Target,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    *,
    seconds: float | None = None,
) -> None:
    """Returns when the receiver has taken it. Raises the `DeliveryProblem` that the answer, or its absence, stands for."""
    all_headers = {
        "Content-Type": "application/json",
        # A reused connection may be closed under our hands, and then nobody knows whether the message arrived.
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
        )
    except AgentError as error:
        if error.error_code in _ANSWERED:
            return
        raise _meaning_of(error) from error
    if not 200 <= response.status < 300:
        raise _refusal(response, target)


def _meaning_of(error: AgentError) -> DeliveryProblem:
    if not error.retryable:
        return Refused(str(error))
    return NotDelivered(str(error)) if error.nothing_sent else Unclear(str(error))


def _refusal(response: OutboundResponse, target: Target) -> DeliveryProblem:
    shown = excerpt(response.body, secrets=(target.address, *target.secrets))
    message = f"The receiver answered with status {response.status}" + (f": {shown}" if shown else ".")
    if response.status in _RETRYABLE or response.status >= 500:
        return NotDelivered(message, retry_after=retry_after_seconds(response.headers.get("retry-after")))
    return Refused(message)


# Targets: where a channel leads and with what it is signed. Sealed at rest, opened only to send, never shown again.

MOST_ADDRESSES = 20


@dataclass(frozen=True, slots=True)
class Target:
    """A URL, or addresses of mail separated by commas; for a webhook the secrets that sign, newest first."""

    address: str
    secrets: tuple[str, ...] = ()


class InvalidTarget(ValueError):
    """Nothing could be sent there. The text says why."""


def check_target(kind: str, address: str) -> None:
    """Raise `InvalidTarget` for what could not be sent to. May ask the name service: not inside a transaction."""
    if kind == ChannelKind.EMAIL:
        _check_mail(address)
        return
    try:
        outbound.check_url(address, purpose=outbound.NOTIFICATIONS)
    except OutboundRefused as error:
        raise InvalidTarget(str(error)) from error


def put_target(channel: NotificationChannel, address: str) -> None:
    """Give the channel this target, without saving it. A webhook keeps its secrets; one without any that can be read gets its first."""
    own_secrets = _secrets_of(channel)
    if channel.kind == ChannelKind.WEBHOOK and not own_secrets:
        own_secrets = (webhook_signing.new_secret(),)
    _seal(channel, Target(address, own_secrets))
    channel.target_shown = _show_target(channel.kind, address)


def renew_secret(channel: NotificationChannel) -> str:
    """Give a webhook a new secret, without saving it, and return it. The one before signs as well, until the next renewal."""
    target, new = open_target(channel), webhook_signing.new_secret()
    _seal(channel, Target(target.address, (new, *target.secrets[:1])))
    return new


def open_target(channel: NotificationChannel) -> Target:
    """Raises `agents.exceptions.ConfigurationError` when the key that sealed it is gone."""
    return unseal_target(channel.tenant_id, channel.pk, channel.target_sealed)


def unseal_target(tenant_id: UUID, channel_id: UUID, sealed: str) -> Target:
    """The same from the columns of the row."""
    stored = credentials.unseal(sealed, context=context_of(tenant_id, channel_id))
    return Target(stored["address"], tuple(stored["secrets"].split()))


def platform_target(kind: str) -> Target | None:
    """The platform's own channel of this kind, if there is one."""
    address = {ChannelKind.SLACK: settings.SLACK_WEBHOOK_URL, ChannelKind.EMAIL: settings.ALERT_EMAIL}.get(
        ChannelKind(kind), ""
    )
    return Target(address) if address else None


def addresses_of(target: Target) -> list[str]:
    """The addresses of mail in a target."""
    return [address for part in target.address.split(",") if (address := part.strip())]


def _secrets_of(channel: NotificationChannel) -> tuple[str, ...]:
    try:
        return open_target(channel).secrets if channel.target_sealed else ()
    except ConfigurationError:
        return ()  # The key is gone, and with it what the receiver verifies by.


def _check_mail(text: str) -> None:
    addresses = addresses_of(Target(text))
    if not 0 < len(addresses) <= MOST_ADDRESSES:
        raise InvalidTarget(f"must be 1 to {MOST_ADDRESSES} addresses of mail, separated by commas")
    for address in addresses:
        try:
            validate_email(address)
        except ValidationError as error:
            raise InvalidTarget(f"{address!r} is not an address of mail") from error


def _show_target(kind: str, address: str) -> str:
    if kind == ChannelKind.EMAIL:
        masked = (
            f"{name[:1]}…@{host}"
            for name, _, host in (a.rpartition("@") for a in addresses_of(Target(address)))
        )
        return ", ".join(masked)[:300]
    return urls.read(address).place  # the rest of the URL is the secret of Slack's webhooks


def _seal(channel: NotificationChannel, target: Target) -> None:
    fields = {"address": target.address, "secrets": " ".join(target.secrets)}
    channel.target_sealed = credentials.seal(fields, context=context_of(channel.tenant_id, channel.pk))


def context_of(tenant_id: UUID, channel_id: UUID) -> str:
    return f"notification_channel:{tenant_id}:{channel_id}:target"
