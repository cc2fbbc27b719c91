"""Decisions from Slack: the message with its buttons, and what comes back when somebody presses one. Slack is a server of this test."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from urllib.parse import urlencode

import pytest
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.test import Client

from activities.human_tasks import approvals
from activities.models import Activity, Alert, Vote
from activities.notifications.backends import seal_question
from activities.notifications.delivery import deliver_waiting
from agents import outbound
from agents.contracts import Completed, Output
from console.inbox import questions, slack
from tenants import clock
from tenants.context import system_scope, tenant_scope
from tenants.models import AuditEntry, Membership, Tenant
from tests.console_user import Person
from tests.integration.alert_delivery.channels import channel_of
from tests.questions import Questions
from tests.receivers import HttpReceiver, MailReceiver, http_receiver, mail_receiver

SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
ANN = "T0ACME/U0ANN"
_numbers = count(1)


@dataclass
class Workspace:
    """Slack: takes messages at its webhook, and sends what people press, signed."""

    receiver: HttpReceiver
    browser: Client = field(default_factory=lambda: Client(enforce_csrf_checks=True))

    @property
    def messages(self) -> list[Any]:
        return [posted.json for posted in self.receiver.posted if posted.path == "/hook"]

    @property
    def answers(self) -> list[Any]:
        """What was told those who pressed, in their order."""
        return [posted.json for posted in self.receiver.posted if posted.path == "/answer"]

    def value(self) -> str:
        """What stands behind the buttons of the newest message."""
        return str(buttons(self.messages[-1])["approve"]["value"])

    def press(
        self,
        action: str,
        *,
        user: str = ANN,
        notes: str = "",
        value: str | None = None,
        late: timedelta = timedelta(0),
        secret: str = SECRET,
    ) -> HttpResponse:
        return self.send(
            *self.signed(action, user, notes, self.value() if value is None else value, late, secret)
        )

    def signed(
        self,
        action: str,
        user: str,
        notes: str,
        value: str,
        late: timedelta = timedelta(0),
        secret: str = SECRET,
    ) -> tuple[bytes, dict[str, str]]:
        team, _, person = user.partition("/")
        payload = {
            "type": "block_actions",
            "trigger_id": str(next(_numbers)),
            "user": {"id": person, "team_id": team, "username": "root", "name": "root"},
            "response_url": self.receiver.url.replace("/hook", "/answer"),
            "actions": [{"action_id": action, "value": value, "type": "button"}],
            "state": {"values": {"notes": {"notes": {"type": "plain_text_input", "value": notes or None}}}},
        }
        body = urlencode({"payload": json.dumps(payload)}).encode()
        timestamp = str(int((clock.now() - late).timestamp()))
        signature = hmac.new(
            secret.encode(), b"v0:" + timestamp.encode() + b":" + body, hashlib.sha256
        ).hexdigest()
        return body, {"X-Slack-Request-Timestamp": timestamp, "X-Slack-Signature": f"v0={signature}"}

    def send(self, body: bytes, headers: dict[str, str]) -> HttpResponse:
        answer: HttpResponse = self.browser.post(
            "/slack/", body, content_type="application/x-www-form-urlencoded", headers=headers
        )
        return answer


def buttons(message: Any) -> dict[str, Any]:
    (row,) = [block for block in message["blocks"] if block["type"] == "actions"]
    return {button["action_id"]: button for button in row["elements"]}


def words(message: Any) -> str:
    return "\n".join(block["text"]["text"] for block in message["blocks"] if block["type"] == "section")


@pytest.fixture
def workspace(settings: Any, tenant: Tenant) -> Iterator[Workspace]:
    settings.SLACK_SIGNING_SECRET = SECRET
    settings.SLACK_WEBHOOK_URL = settings.ALERT_EMAIL = ""
    with http_receiver() as receiver:
        settings.ORCHESTRATOR_EGRESS_ALLOW = (receiver.place,)
        channel = channel_of(tenant, "slack", receiver.url)
        with tenant_scope(tenant.pk):
            channel.kinds = ["decision"]
            channel.save()
        yield Workspace(receiver)
    outbound.close_connections()


@pytest.fixture
def told(workspace: Workspace) -> Callable[[], None]:
    """What the leader and a deliverer do: have every new question sent."""

    def tell() -> None:
        questions.notify()
        deliver_waiting("slack")

    return tell


@pytest.fixture
def ann_in_slack(ann: Person, tenant: Tenant) -> Person:
    call_command("link_slack", tenant=tenant.slug, user="ann", slack=ANN)
    return ann


def status(item: Activity) -> str:
    with tenant_scope(item.tenant_id):
        return Activity.objects.values_list("status", flat=True).get(pk=item.pk)


def entries(tenant: Tenant) -> list[Any]:
    with tenant_scope(tenant.pk):
        return list(AuditEntry.objects.for_tenant(tenant.pk).filter(operation__startswith="slack."))


def test_a_question_is_told_once_with_its_text_and_buttons(
    workspace: Workspace, told: Callable[[], None], asked: Questions, tenant: Tenant
) -> None:
    gate = asked.gate(content="# Bees\n\nBees fly <far>.")

    told()
    told()

    (message,) = workspace.messages
    assert gate.name in words(message)
    assert "Bees fly &lt;far&gt;." in words(message)
    assert set(buttons(message)) == {"approve", "reject", "open"}
    assert buttons(message)["open"]["url"].endswith(f"/inbox/{gate.pk}/?tenant={tenant.slug}")
    assert "confirm" in buttons(message)["approve"]


def test_a_later_round_is_told_with_what_has_changed(
    workspace: Workspace, told: Callable[[], None], asked: Questions
) -> None:
    gate = asked.gate(content="Bees fly.\nThey sting.")
    asked.next_round(gate, "Say how far.", "Bees fly far.\nThey sting.")

    told()

    shown = words(workspace.messages[-1])
    assert "Changes were requested: Say how far." in shown
    assert "-Bees fly.\n+Bees fly far." in shown


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(Output(content="Bees. " * 700), id="a long text"),
        pytest.param(Output(content="Bees.", data={"price": 7}), id="data beside the text"),
    ],
)
def test_what_a_message_cannot_show_as_a_whole_is_decided_where_it_is_shown(
    workspace: Workspace, told: Callable[[], None], asked: Questions, output: Output
) -> None:
    asked.gate_of_step(lambda request: Completed(output))

    told()

    assert set(buttons(workspace.messages[-1])) == {"open"}
    assert questions.CUT in words(workspace.messages[-1])


def test_one_of_several_options_is_chosen_where_they_are_shown(
    workspace: Workspace, told: Callable[[], None], asked: Questions
) -> None:
    asked.approval()

    told()

    assert set(buttons(workspace.messages[-1])) == {"open"}


def test_channels_that_do_not_name_the_kind_hear_of_no_question(
    workspace: Workspace, told: Callable[[], None], asked: Questions, tenant: Tenant
) -> None:
    with http_receiver() as other:
        channel_of(tenant, "slack", other.url, "everything")
        asked.gate()

        told()

        assert other.posted == []
    assert len(workspace.messages) == 1


def test_without_the_secret_of_the_app_a_message_has_no_buttons_and_nothing_is_taken(
    workspace: Workspace, told: Callable[[], None], asked: Questions, ann_in_slack: Person, settings: Any
) -> None:
    gate = asked.gate()
    told()
    value = workspace.value()
    settings.SLACK_SIGNING_SECRET = ""
    asked.gate(name="Another")
    told()

    assert "blocks" not in workspace.messages[-1]
    assert workspace.press("approve", value=value, secret="").status_code == 404
    assert status(gate) == "created"


def test_approving_in_slack_is_the_members_word(
    workspace: Workspace, told: Callable[[], None], asked: Questions, ann_in_slack: Person, tenant: Tenant
) -> None:
    gate = asked.gate()
    told()

    assert workspace.press("approve", notes="Good.").status_code == 200

    assert status(gate) == "approved"
    with tenant_scope(tenant.pk):
        assert Activity.objects.get(pk=gate.pk).decided_by == "user:ann"
    (answer,) = workspace.answers
    assert answer["text"] == f"Approved by ann: {gate.name}"
    assert answer["replace_original"] is True
    (entry,) = entries(tenant)
    assert (entry.operation, entry.actor_name, entry.object_id) == ("slack.approve", "ann", str(gate.pk))
    assert entry.detail["slack_user"] == ANN


def test_sending_back_needs_notes_which_the_agent_gets(
    workspace: Workspace, told: Callable[[], None], asked: Questions, ann_in_slack: Person, tenant: Tenant
) -> None:
    gate = asked.gate()
    told()

    workspace.press("reject")

    assert status(gate) == "created"
    assert "Describe the changes" in workspace.answers[-1]["text"]
    assert workspace.answers[-1]["replace_original"] is False
    assert entries(tenant) == []

    workspace.press("reject", notes="Say how far.")

    assert status(gate) == "rejected"
    asked.engine.drain()
    with tenant_scope(tenant.pk):
        revised = Activity.objects.get(parent_id=gate.parent_id, link_kind="revision_of")
    assert revised.reviewer_notes == "Say how far."
    assert "Say how far." in asked.engine.agent.calls[-1].prompt


def test_a_button_decides_nothing_about_what_has_changed_since(
    workspace: Workspace, told: Callable[[], None], asked: Questions, ann_in_slack: Person, tenant: Tenant
) -> None:
    gate = asked.gate()
    told()
    with tenant_scope(tenant.pk):
        Activity.objects.filter(pk=gate.pk).update(version=gate.version + 1)

    workspace.press("approve")

    assert status(gate) == "created"
    assert "Nothing was done." in workspace.answers[-1]["text"]


def test_a_button_decides_nothing_about_another_text(
    workspace: Workspace, told: Callable[[], None], asked: Questions, ann_in_slack: Person, tenant: Tenant
) -> None:
    """Also where votes of others change the version, and only the text tells."""
    gate = asked.gate()
    told()
    value = seal_question(tenant.pk, gate.pk, gate.version, "")

    workspace.press("approve", value=value)

    assert status(gate) == "created"
    assert workspace.answers[-1]["text"] == slack.CHANGED


def test_who_comes_second_is_told_who_was_first(
    workspace: Workspace, told: Callable[[], None], asked: Questions, ann_in_slack: Person
) -> None:
    gate = asked.gate()
    told()
    approvals.reject(gate.tenant_id, gate.pk, actor="user:bea", notes="No.")

    workspace.press("approve")

    assert status(gate) == "rejected"
    assert "bea" in workspace.answers[-1]["text"]


def test_a_request_is_taken_once(
    workspace: Workspace, told: Callable[[], None], asked: Questions, ann_in_slack: Person, tenant: Tenant
) -> None:
    """Also one that was refused: what has become possible since then needs a person who presses again."""
    gate = asked.gate()
    told()
    with tenant_scope(tenant.pk):
        Membership.objects.update(role="viewer")
    pressed = workspace.signed("approve", ANN, "", workspace.value())
    assert workspace.send(*pressed).status_code == 200
    with tenant_scope(tenant.pk):
        Membership.objects.update(role="operator")

    assert workspace.send(*pressed).status_code == 200

    assert status(gate) == "created"
    assert len(workspace.answers) == 1
    workspace.press("approve")
    assert status(gate) == "approved"


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"late": timedelta(seconds=301)}, id="too old"),
        pytest.param({"late": timedelta(seconds=-302)}, id="from the future"),
        pytest.param({"secret": "another secret"}, id="signed with another secret"),
    ],
)
def test_what_slack_has_not_signed_in_these_minutes_is_refused(
    workspace: Workspace,
    told: Callable[[], None],
    asked: Questions,
    ann_in_slack: Person,
    wrong: dict[str, Any],
) -> None:
    gate = asked.gate()
    told()

    assert workspace.press("approve", **wrong).status_code == 401

    assert status(gate) == "created"
    assert workspace.answers == []


def test_the_signature_is_over_the_bytes_that_came(
    workspace: Workspace, told: Callable[[], None], asked: Questions, ann_in_slack: Person
) -> None:
    gate = asked.gate()
    told()
    body, headers = workspace.signed("reject", ANN, "No.", workspace.value())

    assert workspace.send(body.replace(b"reject", b"approve"), headers).status_code == 401
    assert workspace.send(body, {}).status_code == 401

    assert status(gate) == "created"


#: The example of Slack's own documentation.
EXAMPLE = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar"
    b"&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com"
    b"%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121."
    b"803a0bc887a14d10d2c447fce8b6703c"
)
SIGNATURE = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"


def test_the_signature_is_the_one_that_slack_documents(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SLACK_SIGNING_SECRET = SECRET
    monkeypatch.setattr(clock, "now", lambda: datetime.fromtimestamp(1531420618 + 300, UTC))

    assert slack.is_signed(EXAMPLE, "1531420618", SIGNATURE)
    assert not slack.is_signed(EXAMPLE, "1531420619", SIGNATURE)
    assert not slack.is_signed(EXAMPLE, "1531420617", SIGNATURE)
    assert not slack.is_signed(EXAMPLE, "1531420618", SIGNATURE.removeprefix("v0="))
    assert not slack.is_signed(EXAMPLE, "now", SIGNATURE)
    assert not slack.is_signed(EXAMPLE, "1531420618", "v0=\u00e9")


def test_nobody_is_known_by_a_name(
    workspace: Workspace, told: Callable[[], None], asked: Questions, ann_in_slack: Person, tenant: Tenant
) -> None:
    gate = asked.gate()
    told()

    workspace.press("approve", user="T0ACME/U0ANNA")
    workspace.press("approve", user="T0OTHER/U0ANN")

    assert status(gate) == "created"
    assert [answer["text"] for answer in workspace.answers] == [
        slack.backends.inert(slack.NOT_LINKED.format(user)) for user in ("T0ACME/U0ANNA", "T0OTHER/U0ANN")
    ]


def test_a_member_of_one_tenant_decides_nothing_in_another(
    workspace: Workspace,
    told: Callable[[], None],
    asked: Questions,
    ann_in_slack: Person,
    other_tenant: Tenant,
    asked_elsewhere: Questions,
) -> None:
    asked.gate()
    told()
    theirs = asked_elsewhere.gate()

    workspace.press(
        "approve",
        value=seal_question(other_tenant.pk, theirs.pk, theirs.version, str(theirs.input_ref or "")),
    )

    assert status(theirs) == "created"
    assert "cannot decide here" in workspace.answers[-1]["text"]


@pytest.fixture
def asked_elsewhere(asked: Questions, other_tenant: Tenant) -> Questions:
    return Questions(asked.engine, other_tenant)


def test_a_button_that_we_have_not_made_decides_nothing(
    workspace: Workspace, told: Callable[[], None], asked: Questions, ann_in_slack: Person
) -> None:
    gate = asked.gate()
    told()

    workspace.press("approve", value=workspace.value()[:-2] + "xx")

    assert status(gate) == "created"
    assert workspace.answers[-1]["text"] == slack.NOT_OURS


def test_the_decision_stands_when_slack_cannot_be_told(
    workspace: Workspace, told: Callable[[], None], asked: Questions, ann_in_slack: Person
) -> None:
    gate = asked.gate()
    told()
    workspace.receiver.answers((500, {}, b""))

    assert workspace.press("approve").status_code == 200

    assert status(gate) == "approved"


def test_one_person_of_slack_is_one_member(
    ann_in_slack: Person, person: Callable[..., Person], tenant: Tenant
) -> None:
    person("bea")

    for wrong in (ANN, "ann", "U0ANN", "T0ACME/ann"):
        with pytest.raises(CommandError):
            call_command("link_slack", tenant=tenant.slug, user="bea", slack=wrong)
    call_command("link_slack", tenant=tenant.slug, user="ann", slack="")
    call_command("link_slack", tenant=tenant.slug, user="bea", slack=ANN)

    with tenant_scope(tenant.pk):
        linked = dict(Membership.objects.values_list("user__username", "slack_user"))
    assert linked == {"ann": "", "bea": ANN}


def test_a_quorum_takes_as_many_people_in_slack_as_anywhere(
    workspace: Workspace, told: Callable[[], None], asked: Questions, ann_in_slack: Person, person: Callable[..., Person],
    tenant: Tenant,
) -> None:  # fmt: skip
    person("bea")
    call_command("link_slack", tenant=tenant.slug, user="bea", slack="T0ACME/U0BEA")
    item = asked.approval(options=(), quorum=2)
    told()
    value = workspace.value()

    workspace.press("approve", value=value)
    workspace.press("approve", value=value)

    with tenant_scope(tenant.pk):
        assert Vote.objects.filter(activity_id=item.pk).count() == 1
    assert workspace.answers[0]["replace_original"] is False
    assert "You have voted." in workspace.answers[1]["text"]

    workspace.press("approve", value=value, user="T0ACME/U0BEA")

    assert status(item) == "approved"


def test_what_is_sent_too_often_has_to_wait(workspace: Workspace, asked: Questions) -> None:
    got = {workspace.send(b"payload=%7B%7D", {}).status_code for _ in range(130)}

    assert got == {401, 429}


@pytest.fixture
def mails(settings: Any) -> Iterator[MailReceiver]:
    import environ

    with mail_receiver() as running:
        settings.EMAIL_URL = f"smtp://127.0.0.1:{running.port}"
        for name, value in environ.Env.email_url_config(settings.EMAIL_URL).items():
            setattr(settings, name, value)
        yield running


def test_a_mail_has_the_item_its_changes_and_one_link(
    workspace: Workspace, mails: MailReceiver, asked: Questions, tenant: Tenant
) -> None:
    channel = channel_of(tenant, "email", "editor@example.com")
    with tenant_scope(tenant.pk):
        channel.kinds = ["decision"]
        channel.save()
    gate = asked.next_round(asked.gate(content="Bees fly."), "Say how far.", "Bees fly far.")

    questions.notify()
    deliver_waiting("email")

    with system_scope():
        assert Alert.objects.filter(activity_id=gate.pk, kind="decision").count() == 1
    text = str(mails.mails[-1].get_payload(decode=True), "utf-8")
    assert "-Bees fly.\n+Bees fly far." in text.replace("\r\n", "\n")
    assert text.count("://") == 1
    assert f"/inbox/{gate.pk}/?tenant={tenant.slug}" in text
