"""Text of agents in alerts stays plain text: it contains no links, images or mentions."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from activities.notifications import backends
from activities.notifications.backends import Message, Target
from tests.hostile_texts import HOSTILE_HOST, LINE, LONG, SHORT

HERE = "https://ours.example"
SPECIAL = (
    "<!channel> <@U123> <!here|x>",
    f"<https://{HOSTILE_HOST}|your bank>",
    "@channel #general",
    "a\r\nBcc: all@evil.example\n\nx",
)


def message(text: str) -> Message:
    """Return an alert in which every text is this one."""
    claim = SimpleNamespace(
        id=UUID(int=1), tenant_id=UUID(int=3), alert_id=UUID(int=2), kind="dead_letter", severity="critical", title=text, body=text,
        activity_id=None, facts={"x": text}, tenant="acme", created_at=datetime(2026, 1, 1, tzinfo=UTC), channel_id=None,
    )  # fmt: skip
    return Message.of(claim)


@pytest.fixture(autouse=True)
def public_url(settings: object) -> None:
    settings.ORCHESTRATOR_PUBLIC_URL = HERE  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", [*SHORT, *SPECIAL, LONG, LINE], ids=range(len(SHORT) + len(SPECIAL) + 2))
def test_an_alert_in_slack_contains_no_link_image_or_mention(text: str) -> None:
    posted = backends.slack_payload(message(text))

    body = str(posted["text"])
    ours = re.findall(r"<[^>]*>", body)
    assert len(ours) == 1
    assert ours[0].startswith(f"<{HERE}/admin/")
    rest = body.replace(ours[0], "")
    assert not re.search(r"[<>]|://|\]\(|@\w|#\w|[\u202a-\u202e\u2066-\u2069]", rest)
    assert (posted["unfurl_links"], posted["unfurl_media"], posted["mrkdwn"]) == (False, False, False)
    assert len(body) < 6_000


@pytest.mark.parametrize("text", [*SHORT, *SPECIAL, LONG, LINE], ids=range(len(SHORT) + len(SPECIAL) + 2))
def test_a_question_in_slack_contains_no_link_image_or_mention(text: str, settings: object) -> None:
    settings.SLACK_SIGNING_SECRET = "a secret"  # type: ignore[attr-defined]
    facts = {"decides": True, "version": 1, "content_ref": ""}
    question = replace(
        message(text), kind="decision", activity_id=UUID(int=4), facts=facts, link=f"{HERE}/inbox/4/"
    )

    blocks: Any = backends.slack_payload(question)["blocks"]

    texts = [block["text"] for block in blocks if block["type"] == "section"]
    (row,) = [block for block in blocks if block["type"] == "actions"]
    texts += [button["confirm"]["text"] for button in row["elements"] if "confirm" in button]
    assert {each["type"] for each in texts} == {"plain_text"}
    for each in texts:
        assert not re.search(r"[<>]|://|\]\(|@\w|#\w|[\u202a-\u202e\u2066-\u2069]", each["text"])
        assert len(each["text"]) <= 3_000
    assert [button["url"] for button in row["elements"] if "url" in button] == [f"{HERE}/inbox/4/"]


@pytest.mark.parametrize("text", [*SHORT, *SPECIAL, LONG, LINE], ids=range(len(SHORT) + len(SPECIAL) + 2))
def test_a_mail_is_plain_text_under_one_line_of_subject(text: str) -> None:
    sent = backends.compose_mail(message(text), Target("ops@good.example")).message()

    assert sent.get_content_type() == "text/plain"
    assert not sent.is_multipart()
    assert sent.get_all("To") == ["ops@good.example"]
    assert sent["Bcc"] is None
    assert sent["Cc"] is None
    assert len(str(sent["Subject"])) < 1_000
    read = str(sent.get_payload(decode=True).decode())
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", read)
    assert len(read) < 6_000
