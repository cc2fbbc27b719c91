"""Decisions in Slack: messages with buttons, and the effect of a pressed button. A local server stands in for Slack."""

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

from activities.human_tasks import decisions
from activities.models import Activity, Alert, Vote
from activities.notifications.backends import seal_question
from activities.notifications.delivery import deliver_waiting
from agents import outbound
from agents.contracts import Completed, Output
from console.inbox import questions as question_messages
from console.inbox import slack
from tenants import clock, sweeps
from tenants.context import system_scope, tenant_scope
from tenants.models import AuditEntry, Membership, Tenant
from tests import redis_clock
from tests.console_user import Person
from tests.integration.alert_delivery.channels import channel_of
from tests.questions import Questions
from tests.receivers import HttpReceiver, MailReceiver, http_receiver

SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
ANN = "T0ACME/U0ANN"
_numbers = count(1)


@dataclass
class Workspace:
    """A Slack workspace: receives messages at its webhook, and sends signed button presses."""

    receiver: HttpReceiver
    browser: Client = field(default_factory=lambda: Client(enforce_csrf_checks=True))

    @property
    def messages(self) -> list[Any]:
        return [posted.json for posted in self.receiver.posted if posted.path == "/hook"]

    @property
    def answers(self) -> list[Any]:
        """The responses to button presses, in order."""
        return [posted.json for posted in self.receiver.posted if posted.path == "/answer"]

    def value(self) -> str:
        """Return the value of the buttons of the newest message."""
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
def notify(workspace: Workspace) -> Callable[[], None]:
    """Return a function that sends every new question, as the leader and a deliverer do."""

    def send() -> None:
        question_messages.notify()
        deliver_waiting("slack")

    return send


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


def test_a_question_is_sent_once_with_its_text_and_buttons(
    workspace: Workspace, notify: Callable[[], None], questions: Questions, tenant: Tenant
) -> None:
    gate = questions.gate(content="# Bees\n\nBees fly <far>.")

    notify()
    notify()

    (message,) = workspace.messages
    assert gate.name in words(message)
    assert "Bees fly &lt;far&gt;." in words(message)
    assert set(buttons(message)) == {"approve", "reject", "open"}
    assert buttons(message)["open"]["url"].endswith(f"/inbox/{gate.pk}/?tenant={tenant.slug}")
    assert "confirm" in buttons(message)["approve"]


def test_a_later_round_is_sent_with_the_changes(
    workspace: Workspace, notify: Callable[[], None], questions: Questions
) -> None:
    gate = questions.gate(content="Bees fly.\nThey sting.")
    questions.next_round(gate, "Say how far.", "Bees fly far.\nThey sting.")

    notify()

    text = words(workspace.messages[-1])
    assert "Changes were requested: Say how far." in text
    assert "-Bees fly.\n+Bees fly far." in text


def test_changed_lines_that_look_like_the_head_of_a_diff_are_sent(
    workspace: Workspace, notify: Callable[[], None], questions: Questions
) -> None:
    gate = questions.gate(content="Bees fly.\n-- removed")
    questions.next_round(gate, "Once more.", "Bees fly.\n++ added")

    notify()

    text = words(workspace.messages[-1])
    assert "--- removed" in text
    assert "+++ added" in text


def test_a_question_that_cannot_be_sent_does_not_stop_the_others(
    workspace: Workspace,
    notify: Callable[[], None],
    questions: Questions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweeps, "PAGE", 1)
    broken, fine = questions.gate(name="Broken"), questions.gate(name="Fine")
    read = question_messages.outputs.read_many

    def read_other(tenant_id: Any, ids: Any) -> Any:
        if broken.input_ref in ids:
            raise LookupError("broken")
        return read(tenant_id, ids)

    monkeypatch.setattr(question_messages.outputs, "read_many", read_other)

    notify()

    (message,) = workspace.messages
    assert fine.name in words(message)


def test_a_tenant_with_many_questions_leaves_time_for_those_of_others(
    workspace: Workspace,
    notify: Callable[[], None],
    questions: Questions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(question_messages, "TENANT_SECONDS", 0.0)
    for name in ("First", "Second"):
        questions.gate(name=name)
    sent = []
    for _ in range(2):
        notify()
        sent.append(len(workspace.messages))

    assert sent == [1, 2]


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(Output(content="Bees. " * 700), id="a long text"),
        pytest.param(Output(content="Bees.", data={"price": 7}), id="data beside the text"),
    ],
)
def test_a_message_that_is_incomplete_has_only_a_link(
    workspace: Workspace, notify: Callable[[], None], questions: Questions, output: Output
) -> None:
    questions.gate_of_step(lambda request: Completed(output))

    notify()

    assert set(buttons(workspace.messages[-1])) == {"open"}
    assert question_messages.CUT in words(workspace.messages[-1])


def test_a_message_about_options_has_only_a_link(
    workspace: Workspace, notify: Callable[[], None], questions: Questions
) -> None:
    questions.approval()

    notify()

    assert set(buttons(workspace.messages[-1])) == {"open"}


def test_questions_of_a_suspended_tenant_are_sent_when_it_is_active_again(
    workspace: Workspace, notify: Callable[[], None], questions: Questions, tenant: Tenant
) -> None:
    questions.gate()
    with system_scope():
        Tenant.objects.filter(pk=tenant.pk).update(is_active=False)
    notify()
    while_suspended = workspace.messages
    with system_scope():
        Tenant.objects.filter(pk=tenant.pk).update(is_active=True)

    notify()

    assert while_suspended == []
    assert len(workspace.messages) == 1


def test_channels_without_the_kind_get_no_question(
    workspace: Workspace, notify: Callable[[], None], questions: Questions, tenant: Tenant
) -> None:
    with http_receiver() as other:
        channel_of(tenant, "slack", other.url, "everything")
        questions.gate()

        notify()

        assert other.posted == []
    assert len(workspace.messages) == 1


def test_without_the_signing_secret_there_are_no_buttons_and_no_decisions(
    workspace: Workspace,
    notify: Callable[[], None],
    questions: Questions,
    ann_in_slack: Person,
    settings: Any,
) -> None:
    gate = questions.gate()
    notify()
    value = workspace.value()
    settings.SLACK_SIGNING_SECRET = ""
    questions.gate(name="Another")
    notify()

    assert "blocks" not in workspace.messages[-1]
    assert workspace.press("approve", value=value, secret="").status_code == 404
    assert status(gate) == "created"


def test_an_approval_in_slack_is_recorded_for_the_member(
    workspace: Workspace,
    notify: Callable[[], None],
    questions: Questions,
    ann_in_slack: Person,
    tenant: Tenant,
) -> None:
    gate = questions.gate()
    notify()

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


def test_requested_changes_need_notes_and_reach_the_agent(
    workspace: Workspace,
    notify: Callable[[], None],
    questions: Questions,
    ann_in_slack: Person,
    tenant: Tenant,
) -> None:
    gate = questions.gate()
    notify()

    workspace.press("reject")

    assert status(gate) == "created"
    assert "Describe the changes" in workspace.answers[-1]["text"]
    assert workspace.answers[-1]["replace_original"] is False
    assert entries(tenant) == []

    workspace.press("reject", notes="Say how far.")

    assert status(gate) == "rejected"
    questions.engine.drain()
    with tenant_scope(tenant.pk):
        revised = Activity.objects.get(parent_id=gate.parent_id, link_kind="revision_of")
    assert revised.reviewer_notes == "Say how far."
    assert "Say how far." in questions.engine.agent.calls[-1].prompt


def test_a_button_of_an_older_version_decides_nothing(
    workspace: Workspace,
    notify: Callable[[], None],
    questions: Questions,
    ann_in_slack: Person,
    tenant: Tenant,
) -> None:
    gate = questions.gate()
    notify()
    with tenant_scope(tenant.pk):
        Activity.objects.filter(pk=gate.pk).update(version=gate.version + 1)

    workspace.press("approve")

    assert status(gate) == "created"
    assert "Nothing was done." in workspace.answers[-1]["text"]


def test_a_button_of_another_text_decides_nothing(
    workspace: Workspace,
    notify: Callable[[], None],
    questions: Questions,
    ann_in_slack: Person,
    tenant: Tenant,
) -> None:
    """Votes of others change the version as well, so the text is compared too."""
    gate = questions.gate()
    notify()
    value = seal_question(tenant.pk, gate.pk, gate.version, "")

    workspace.press("approve", value=value)

    assert status(gate) == "created"
    assert workspace.answers[-1]["text"] == slack.CHANGED


def test_a_late_press_is_told_who_decided(
    workspace: Workspace, notify: Callable[[], None], questions: Questions, ann_in_slack: Person
) -> None:
    gate = questions.gate()
    notify()
    decisions.reject(gate.tenant_id, gate.pk, actor="user:bea", notes="No.")

    workspace.press("approve")

    assert status(gate) == "rejected"
    assert "bea" in workspace.answers[-1]["text"]


def test_a_signed_request_counts_once(
    workspace: Workspace,
    notify: Callable[[], None],
    questions: Questions,
    ann_in_slack: Person,
    tenant: Tenant,
) -> None:
    """A refused request does not count later either: the person has to press again."""
    gate = questions.gate()
    notify()
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
def test_old_and_wrongly_signed_requests_are_refused(
    workspace: Workspace,
    notify: Callable[[], None],
    questions: Questions,
    ann_in_slack: Person,
    wrong: dict[str, Any],
) -> None:
    gate = questions.gate()
    notify()

    assert workspace.press("approve", **wrong).status_code == 401

    assert status(gate) == "created"
    assert workspace.answers == []


def test_the_signature_covers_the_raw_body(
    workspace: Workspace, notify: Callable[[], None], questions: Questions, ann_in_slack: Person
) -> None:
    gate = questions.gate()
    notify()
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


def test_the_signature_matches_the_documentation_of_slack(
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


def test_unlinked_slack_users_decide_nothing(
    workspace: Workspace,
    notify: Callable[[], None],
    questions: Questions,
    ann_in_slack: Person,
    tenant: Tenant,
) -> None:
    gate = questions.gate()
    notify()

    workspace.press("approve", user="T0ACME/U0ANNA")
    workspace.press("approve", user="T0OTHER/U0ANN")
    answer = workspace.press("approve", user=f"{ANN}\x00")

    assert answer.status_code == 200
    assert status(gate) == "created"
    unlinked = ("T0ACME/U0ANNA", "T0OTHER/U0ANN", f"{ANN}\x00")
    assert [answer["text"] for answer in workspace.answers] == [
        slack.backends.inert(slack.NOT_LINKED.format(user)) for user in unlinked
    ]


@pytest.mark.parametrize("inactive", ["person", "tenant"])
def test_inactive_people_and_those_of_inactive_tenants_decide_nothing(
    workspace: Workspace,
    notify: Callable[[], None],
    questions: Questions,
    ann_in_slack: Person,
    tenant: Tenant,
    inactive: str,
) -> None:
    gate = questions.gate()
    notify()
    with tenant_scope(tenant.pk):
        row: Any = ann_in_slack.user if inactive == "person" else tenant
        type(row).objects.filter(pk=row.pk).update(is_active=False)

    workspace.press("approve")

    assert status(gate) == "created"
    assert [answer["text"] for answer in workspace.answers] == [
        slack.backends.inert(slack.NOT_LINKED.format(ANN))
    ]


def test_a_member_of_one_tenant_decides_nothing_in_another(
    workspace: Workspace,
    notify: Callable[[], None],
    questions: Questions,
    ann_in_slack: Person,
    other_tenant: Tenant,
    other_questions: Questions,
) -> None:
    questions.gate()
    notify()
    theirs = other_questions.gate()

    workspace.press(
        "approve",
        value=seal_question(other_tenant.pk, theirs.pk, theirs.version, str(theirs.input_ref or "")),
    )

    assert status(theirs) == "created"
    assert "cannot decide here" in workspace.answers[-1]["text"]


@pytest.fixture
def other_questions(questions: Questions, other_tenant: Tenant) -> Questions:
    return Questions(questions.engine, other_tenant)


def test_a_forged_button_value_decides_nothing(
    workspace: Workspace, notify: Callable[[], None], questions: Questions, ann_in_slack: Person
) -> None:
    gate = questions.gate()
    notify()

    workspace.press("approve", value=workspace.value()[:-2] + "xx")

    assert status(gate) == "created"
    assert workspace.answers[-1]["text"] == slack.NOT_OURS


def test_a_decision_remains_when_slack_does_not_answer(
    workspace: Workspace, notify: Callable[[], None], questions: Questions, ann_in_slack: Person
) -> None:
    gate = questions.gate()
    notify()
    workspace.receiver.answer_with((500, {}, b""))

    assert workspace.press("approve").status_code == 200

    assert status(gate) == "approved"


def test_a_slack_user_is_linked_to_one_member(
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


def test_a_quorum_counts_people_in_slack(
    workspace: Workspace, notify: Callable[[], None], questions: Questions, ann_in_slack: Person, person: Callable[..., Person],
    tenant: Tenant,
) -> None:  # fmt: skip
    person("bea")
    call_command("link_slack", tenant=tenant.slug, user="bea", slack="T0ACME/U0BEA")
    item = questions.approval(options=(), quorum=2)
    notify()
    value = workspace.value()

    workspace.press("approve", value=value)
    workspace.press("approve", value=value)

    with tenant_scope(tenant.pk):
        assert Vote.objects.filter(activity_id=item.pk).count() == 1
    assert workspace.answers[0]["replace_original"] is False
    assert workspace.answers[0]["text"] == f"Vote recorded; more approvals are needed: {item.name}"
    assert "You have voted." in workspace.answers[1]["text"]

    workspace.press("approve", value=value, user="T0ACME/U0BEA")

    assert status(item) == "approved"


def test_slack_requests_are_rate_limited(
    workspace: Workspace, questions: Questions, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_clock.stop_limiter(monkeypatch)  # else a slow machine would stay below the rate

    statuses = [workspace.send(b"payload=%7B%7D", {}).status_code for _ in range(101)]

    assert statuses == [401] * 100 + [429]


def test_a_mail_shows_the_item_its_changes_and_one_link(
    workspace: Workspace, mails: MailReceiver, questions: Questions, tenant: Tenant
) -> None:
    channel = channel_of(tenant, "email", "editor@example.com")
    with tenant_scope(tenant.pk):
        channel.kinds = ["decision"]
        channel.save()
    gate = questions.next_round(questions.gate(content="Bees fly."), "Say how far.", "Bees fly far.")

    question_messages.notify()
    deliver_waiting("email")

    with system_scope():
        assert Alert.objects.filter(activity_id=gate.pk, kind="decision").count() == 1
    text = str(mails.mails[-1].get_payload(decode=True), "utf-8")
    assert "-Bees fly.\n+Bees fly far." in text.replace("\r\n", "\n")
    assert text.count("://") == 1
    assert f"/inbox/{gate.pk}/?tenant={tenant.slug}" in text
