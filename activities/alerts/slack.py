"""Alerts for Slack, by an incoming webhook.

Slack reads `<...>` as links and mentions, and servers that imitate it read Markdown and `@names`. Nothing of that may come out of an
agent's text: what could start one is escaped or broken up.
"""

from __future__ import annotations

import re

import orjson

from activities.alerts.messages import Message
from activities.alerts.posting import post
from activities.alerts.targets import Target

#: Before names, between a scheme and its address, between the two halves of a Markdown link.
_STARTS = re.compile(r"[@#](?=\w)|:(?=//)|\](?=\()")
_BREAK = "\u200b"  # takes no room, and ends a word
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def send(message: Message, target: Target) -> None:
    """Post it once. Raises a `DeliveryProblem`. Slack does not recognise repetitions."""
    post(target, orjson.dumps(payload(message)))


def payload(message: Message) -> dict[str, object]:
    lines = [f"[{message.severity}] {message.title}", message.body, message.footer]
    text = "\n".join(inert(line) for line in lines if line)
    if message.link:
        text += f"\n<{message.link}>"
    return {
        "text": text,
        "mrkdwn": False,
        "parse": "none",
        "link_names": False,
        "unfurl_links": False,
        "unfurl_media": False,
    }


def inert(text: str) -> str:
    """Text that stays text: no link, no mention, no formatting by brackets."""
    return _STARTS.sub(lambda found: found[0] + _BREAK, text).translate(_ENTITIES)
