"""Alerts by mail, as plain text, and digests also as HTML. EMAIL_URL says through which server.

An answer of the server is final. A connection that breaks while the mail is handed over leaves open whether it arrived: `Unclear`.
"""

from __future__ import annotations

from contextlib import suppress
from smtplib import SMTPException, SMTPRecipientsRefused, SMTPResponseException
from urllib.parse import urlsplit

from django.conf import settings
from django.core.mail import EmailMultiAlternatives, get_connection
from django.template.loader import render_to_string

from activities.alerts.messages import Message, site
from activities.alerts.problems import DeliveryProblem, NotDelivered, Refused, Unclear
from activities.alerts.targets import Target, addresses_of
from activities.models.alert import AlertKind
from agents.excerpts import excerpt


def send(message: Message, target: Target) -> None:
    """Hand it to the mail server once. Raises a `DeliveryProblem`."""
    if not settings.EMAIL_URL:
        raise Refused("No mail can be sent: EMAIL_URL is not set.")
    connection = get_connection(fail_silently=False)
    try:
        connection.open()
    except (OSError, SMTPException) as error:
        raise NotDelivered(f"The mail server could not be reached: {excerpt(str(error))}") from error
    try:
        connection.send_messages([composed(message, target)])
    except (SMTPRecipientsRefused, SMTPResponseException) as error:
        raise _refusal(error) from error
    except (OSError, SMTPException) as error:
        raise Unclear(f"The mail server did not confirm the mail: {excerpt(str(error))}") from error
    finally:
        # The server has said what it has to say; how it says goodbye changes nothing.
        with suppress(OSError, SMTPException):
            connection.close()


def composed(message: Message, target: Target) -> EmailMultiAlternatives:
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


def _refusal(error: SMTPRecipientsRefused | SMTPResponseException) -> DeliveryProblem:
    answers = [(getattr(error, "smtp_code", 0), getattr(error, "smtp_error", ""))]
    if isinstance(error, SMTPRecipientsRefused):
        answers = list(error.recipients.values())
    code, text = min(answers)  # one that may take it later is worth another try
    shown = excerpt(text)
    said = f"The mail server answered {code}" + (f": {shown}" if shown else ".")
    if 400 <= code < 500:
        return NotDelivered(said)
    return Refused(said) if code >= 500 else Unclear(said)
