"""The settings of a tenant, for its admins: members, tokens, budgets, channels and webhooks, with the rules and the trail of the API."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import time_machine

from activities.api.alerts import ChangedChannelSerializer
from activities.api.webhooks import WebhookBodySerializer
from activities.models import NotificationChannel
from agents.api.budgets import BudgetBodySerializer
from console.settings import COLLECTIONS
from tenants import clock, tokens
from tenants.api.channels import ChannelBodySerializer
from tenants.context import tenant_scope
from tenants.models import ApiToken, AuditEntry, Budget, Channel, Membership, Tenant
from tenants.models.events import WebhookDelivery, WebhookEndpoint
from tests.browsing import visible_text
from tests.cases import in_one_test
from tests.console_user import Person, refusal_notice, send_form
from tests.engine import simultaneously
from tests.forms import forms_of
from tests.receivers import HttpReceiver, http_receiver
from tests.spending import make_budget

SETTINGS = "/settings/"
PARTS = ["", "tokens/", "budgets/", "channels/", "notification-channels/", "webhooks/"]


@pytest.fixture
def receiver(settings: Any, database: None) -> Iterator[HttpReceiver]:
    with http_receiver() as running:
        settings.ORCHESTRATOR_EGRESS_ALLOW = (running.place,)
        yield running


def entries(tenant: Tenant) -> list[str]:
    with tenant_scope(tenant.pk):
        rows = AuditEntry.objects.for_tenant(tenant).order_by("number")
        return [f"{row.actor_name} {row.operation} {row.outcome}" for row in rows]


def member(tenant: Tenant, who: Person) -> Membership:
    with tenant_scope(tenant.pk):
        return Membership.objects.get(user=who.user)


@pytest.fixture
def otto(person: Callable[..., Person], other_tenant: Tenant) -> Person:
    """An admin of another tenant."""
    return person("otto", other_tenant, role="admin")


@in_one_test("part", PARTS)
def test_only_admins_of_the_tenant_see_settings(part: str, ann: Person, boss: Person, otto: Person) -> None:
    assert "Only admins of acme can see this page." in visible_text(ann.browser.get(f"{SETTINGS}{part}"))
    assert ann.browser.get(f"{SETTINGS}{part}").status_code == 403
    assert boss.get(f"{SETTINGS}{part}").status_code == 200
    assert otto.browser.get(f"{SETTINGS}{part}?tenant=acme").status_code == 404


@pytest.mark.parametrize("part", PARTS)
def test_each_page_needs_few_queries(part: str, boss: Person, queries_of: Callable[..., list[str]]) -> None:
    queries = queries_of(boss, f"{SETTINGS}{part}")

    assert len(queries) <= 12, queries


def test_a_changed_role_is_audited_before_and_after(tenant: Tenant, ann: Person, boss: Person) -> None:
    row, form = member(tenant, ann), forms_of(boss.get(SETTINGS))["members"]

    changed = {f"role:{row.pk}": "viewer", f"human_roles:{row.pk}": "editor, legal"}
    answer = form.send(boss.browser, ("action", f"change:{row.pk}"), **changed)

    assert "ann now has the role viewer" in visible_text(boss.get(answer["Location"]))
    row = member(tenant, ann)
    assert (row.role, row.human_roles) == ("viewer", ["editor", "legal"])
    with tenant_scope(tenant.pk):
        entry = AuditEntry.objects.for_tenant(tenant).get(operation="membership.changed")
    assert entry.changes == {"role": ["operator", "viewer"], "human_roles": [[], ["editor", "legal"]]}
    assert entry.detail == {"user": "ann"}


def test_a_human_role_of_two_words_stays_one_when_another_field_changes(
    tenant: Tenant, ann: Person, boss: Person
) -> None:
    row = member(tenant, ann)
    row.human_roles = ["head editor", "legal"]
    with tenant_scope(tenant.pk):
        row.save()

    form = forms_of(boss.get(SETTINGS))["members"]
    form.send(boss.browser, ("action", f"change:{row.pk}"), **{f"role:{row.pk}": "viewer"})

    assert (member(tenant, ann).role, member(tenant, ann).human_roles) == ("viewer", ["head editor", "legal"])


def test_a_refused_change_of_a_member_names_the_field_and_keeps_the_input(
    tenant: Tenant, ann: Person, boss: Person
) -> None:
    row, form = member(tenant, ann), forms_of(boss.get(SETTINGS))["members"]
    long = "editor, " * 100

    typed = {f"role:{row.pk}": "viewer", f"human_roles:{row.pk}": long}
    answer = form.send(boss.browser, ("action", f"change:{row.pk}"), **typed)

    assert "Human roles: Ensure this value has at most 500 characters" in refusal_notice(answer, 400)
    again = forms_of(answer)["members"].fields
    assert again[f"role:{row.pk}"] == ["viewer"]
    assert again[f"human_roles:{row.pk}"] == [long]


def test_errors_of_the_api_keep_their_capitals(tenant: Tenant, boss: Person) -> None:
    form = forms_of(boss.get(f"{SETTINGS}budgets/"))["new"]

    page = form.send(boss.browser, name="March", cap="5", period="month", agent_role="SEO")

    (error,) = page.context["form"].errors["agent_role"]
    assert "SEO" in error


def test_an_invalid_amount_is_explained_without_words_of_the_api(boss: Person) -> None:
    form = forms_of(boss.get(f"{SETTINGS}budgets/"))["new"]

    page = form.send(boss.browser, name="March", cap="five", period="month")

    assert page.context["form"].errors["cap"] == ["Must be a number, such as 12.50"]


@pytest.mark.parametrize(("part", "form"), [("", "members"), ("tokens/", "tokens")])
def test_the_enter_key_in_one_row_presses_no_button_of_another(
    part: str, form: str, tenant: Tenant, boss: Person
) -> None:
    tokens.create(tenant, "viewer", "nightly")

    rows = boss.get(f"{SETTINGS}{part}").content.decode().partition(f'id="{form}"')[2]

    first, second = re.findall(r"<button[^>]*>", rows)[:2]
    assert "disabled" in first, "browsers press the first button of a form, and this one does nothing"
    assert 'name="action"' in second


def test_ending_a_membership_needs_a_confirmation(tenant: Tenant, ann: Person, boss: Person) -> None:
    row, form = member(tenant, ann), forms_of(boss.get(SETTINGS))["members"]

    assert "Confirm the action" in refusal_notice(form.send(boss.browser, ("action", f"end:{row.pk}")), 400)
    form.send(boss.browser, ("action", f"end:{row.pk}"), sure="yes")

    assert "You are not a member of any tenant." in visible_text(ann.get("/queues/"))
    assert entries(tenant) == ["boss membership.ended done"]


def test_the_last_admin_cannot_leave(tenant: Tenant, boss: Person) -> None:
    row, form = member(tenant, boss), forms_of(boss.get(SETTINGS))["members"]

    assert "boss is the only admin" in refusal_notice(
        form.send(boss.browser, ("action", f"end:{row.pk}"), sure="yes"), 409
    )
    changed = {f"role:{row.pk}": "viewer"}
    assert "the only admin" in refusal_notice(
        form.send(boss.browser, ("action", f"change:{row.pk}"), **changed), 409
    )
    assert member(tenant, boss).role == "admin"


def test_an_outdated_form_does_not_overwrite_a_change(
    tenant: Tenant, ann: Person, boss: Person, person: Callable[..., Person]
) -> None:
    row, bea = member(tenant, ann), person("bea", role="admin")
    stale = forms_of(boss.get(SETTINGS))["members"]
    forms_of(bea.get(SETTINGS))["members"].send(
        bea.browser, ("action", f"change:{row.pk}"), **{f"role:{row.pk}": "viewer"}
    )

    answer = stale.send(boss.browser, ("action", f"change:{row.pk}"), **{f"human_roles:{row.pk}": "editor"})

    assert "ann was changed since you opened the page, and is now viewer." in refusal_notice(answer, 409)
    row = member(tenant, ann)
    assert (row.role, row.human_roles) == ("viewer", [])
    again = forms_of(answer)["members"]
    again.send(boss.browser, ("action", f"change:{row.pk}"), **{f"human_roles:{row.pk}": "editor"})
    assert member(tenant, ann).human_roles == ["editor"]


def test_two_admins_who_demote_each_other_leave_one_admin(
    tenant: Tenant, boss: Person, person: Callable[..., Person]
) -> None:
    bea = person("bea", role="admin")
    rows = {"boss": member(tenant, boss), "bea": member(tenant, bea)}
    forms = {name: forms_of(who.get(SETTINGS))["members"] for name, who in (("boss", boss), ("bea", bea))}

    def demote(by: Person, other: str) -> Any:
        row = rows[other]
        return forms[by.user.username].send(
            by.browser, ("action", f"change:{row.pk}"), **{f"role:{row.pk}": "viewer"}
        )

    codes = [
        each.status_code for each in simultaneously(lambda: demote(boss, "bea"), lambda: demote(bea, "boss"))
    ]

    assert sorted(codes) in ([302, 403], [302, 409])
    assert sorted([member(tenant, boss).role, member(tenant, bea).role]) == ["admin", "viewer"]


def test_an_inactive_admin_does_not_count_as_one(
    tenant: Tenant, boss: Person, person: Callable[..., Person]
) -> None:
    gone = person("gone", role="admin")
    gone.user.is_active = False
    gone.user.save()
    row, form = member(tenant, boss), forms_of(boss.get(SETTINGS))["members"]

    answer = form.send(boss.browser, ("action", f"end:{row.pk}"), sure="yes")

    assert "boss is the only admin" in refusal_notice(answer, 409)


def test_concurrent_additions_create_one_membership(
    tenant: Tenant, other_tenant: Tenant, root: Person, person: Callable[..., Person]
) -> None:
    person("otto", other_tenant)
    form = forms_of(root.get(f"{SETTINGS}?tenant=acme"))["new"]

    answers = simultaneously(*[lambda: form.send(root.browser, ("action", "add"), username="otto")] * 4)

    assert sorted(answer.status_code for answer in answers) == [302, 409, 409, 409]
    with tenant_scope(tenant.pk):
        assert Membership.objects.filter(user__username="otto").count() == 1


@pytest.mark.parametrize(
    ("key", "body"),
    [
        ("budgets", BudgetBodySerializer),
        ("channels", ChannelBodySerializer),
        ("notification-channels", ChangedChannelSerializer),
        ("webhooks", WebhookBodySerializer),
    ],
)
def test_a_form_has_every_field_of_the_body(key: str, body: type[Any]) -> None:
    changed = COLLECTIONS[key].changed

    assert {*changed.base_fields, *changed.kept} == set(body().fields)


def test_a_mail_channel_keeps_its_digest_when_renamed(tenant: Tenant, boss: Person) -> None:
    new = forms_of(boss.get(f"{SETTINGS}notification-channels/"))["new"]
    fields = {
        "kind": "email",
        "name": "mail",
        "target": "boss@example.com",
        "digest": "weekly",
        "digest_hour": "18",
    }
    new.send(boss.browser, **fields, digest_roles="editor, legal", enabled="on")
    with tenant_scope(tenant.pk):
        channel = NotificationChannel.objects.get()
    assert (channel.digest, channel.digest_hour, channel.digest_roles) == ("weekly", 18, ["editor", "legal"])

    address = f"{SETTINGS}notification-channels/{channel.pk}/"
    form = forms_of(boss.get(address))["change"]
    assert form.send(boss.browser, ("action", "save"), name="post").status_code == 302

    with tenant_scope(tenant.pk):
        changed = NotificationChannel.objects.get()
    assert (changed.name, changed.digest, changed.digest_hour, changed.digest_day) == (
        "post",
        "weekly",
        18,
        "",
    )
    assert changed.digest_roles == ["editor", "legal"]
    assert changed.digest_due_at is not None


def test_only_superusers_add_people(
    tenant: Tenant, other_tenant: Tenant, root: Person, boss: Person, person: Callable[..., Person]
) -> None:
    person("otto", other_tenant)
    form = forms_of(root.get(f"{SETTINGS}?tenant=acme"))["new"]
    assert "new" not in forms_of(boss.get(SETTINGS))

    assert "Only superusers can add people" in refusal_notice(
        send_form(boss, form, action="add", username="otto"), 403
    )
    answer = form.send(root.browser, ("action", "add"), username="nobody")
    assert "There is no person" in refusal_notice(answer, 404)
    assert 'value="nobody"' in answer.content.decode()
    form.send(root.browser, ("action", "add"), username="otto", role="viewer")

    with tenant_scope(tenant.pk):
        assert Membership.objects.get(user__username="otto").role == "viewer"


def test_a_token_is_shown_once_and_has_its_role_and_scopes(tenant: Tenant, boss: Person) -> None:
    form = forms_of(boss.get(f"{SETTINGS}tokens/"))["new"]

    page = form.send(boss.browser, ("action", "make"), name="nightly", role="viewer", days="7", scopes="read")

    assert page.status_code == 201
    secret = page.context["made"]["secret"]
    assert secret in page.content.decode()
    principal = tokens.principal_of(secret)
    assert (principal.tenant, principal.role, principal.scopes) == ("acme", "viewer", ("read",))
    assert secret not in boss.get(f"{SETTINGS}tokens/").content.decode()
    with tenant_scope(tenant.pk):
        entry = AuditEntry.objects.for_tenant(tenant).get(operation="token.created")
        assert [token.platform for token in ApiToken.objects.all()] == [False]
    assert secret not in str(entry.detail)


def test_faults_of_a_token_are_shown_at_their_fields(tenant: Tenant, boss: Person) -> None:
    form = forms_of(boss.get(f"{SETTINGS}tokens/"))["new"]

    page = form.send(boss.browser, ("action", "make"), name="nightly", days="0", scopes="everything")
    assert page.status_code == 400
    assert page.context["form"].errors.keys() == {"days"}
    page = form.send(boss.browser, ("action", "make"), name="nightly", scopes="everything")
    assert page.context["form"].errors.keys() == {"scopes"}
    assert 'value="everything"' in page.content.decode()
    with tenant_scope(tenant.pk):
        assert not ApiToken.objects.exists()


def test_a_revoked_token_is_refused(tenant: Tenant, boss: Person) -> None:
    token, secret = tokens.create(tenant, "viewer", "old")
    form = forms_of(boss.get(f"{SETTINGS}tokens/"))["tokens"]

    assert "Confirm the action" in refusal_notice(
        form.send(boss.browser, ("action", f"revoke:{token.pk}")), 400
    )
    form.send(boss.browser, ("action", f"revoke:{token.pk}"), sure="yes")

    with pytest.raises(tokens.TokenRefused):
        tokens.principal_of(secret)
    assert "revoked" in visible_text(boss.get(f"{SETTINGS}tokens/"))
    form.send(boss.browser, ("action", f"revoke:{token.pk}"), sure="yes")
    assert entries(tenant) == ["boss token.revoked done"], "a repetition changes nothing"


def test_a_token_that_was_used_just_now_says_so(tenant: Tenant, boss: Person) -> None:
    token, _ = tokens.create(tenant, "viewer", "program")
    with tenant_scope(tenant.pk):
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=clock.now())

        token.refresh_from_db()

    with time_machine.travel(token.last_used_at, tick=False):
        text = visible_text(boss.get(f"{SETTINGS}tokens/"))

    assert "active now 20" in text, "last used, then created"


def test_a_budget_is_created_changed_and_removed(tenant: Tenant, boss: Person) -> None:
    place = f"{SETTINGS}budgets/"
    answer = forms_of(boss.get(place))["new"].send(boss.browser, name="March", cap="5", period="month")
    assert "Created: budget March" in visible_text(boss.get(answer["Location"]))
    with tenant_scope(tenant.pk):
        budget = Budget.objects.get()

    page = boss.get(f"{place}{budget.pk}/")
    stale = forms_of(page)["change"]
    stale.send(boss.browser, ("action", "save"), cap="8.5")
    with tenant_scope(tenant.pk):
        budget.refresh_from_db()
    assert (str(budget.cap.normalize()), budget.period) == ("8.5", "month")

    late = stale.send(boss.browser, ("action", "save"), cap="1")
    assert late.status_code == 412
    assert "Read it again and decide again." in visible_text(late)

    forms_of(boss.get(f"{place}{budget.pk}/"))["remove"].send(boss.browser, ("action", "remove"), sure="yes")
    assert "There are none." in visible_text(boss.get(place))
    assert entries(tenant) == [
        "boss POST /budgets/ done", "boss PUT /budgets/{id}/ done", "boss DELETE /budgets/{id}/ done",
    ]  # fmt: skip


def test_faults_found_by_the_api_are_shown_at_their_fields(tenant: Tenant, boss: Person) -> None:
    form = forms_of(boss.get(f"{SETTINGS}budgets/"))["new"]

    page = form.send(boss.browser, name="March", cap="plenty", agent_role="no-such-role")

    assert page.status_code == 400
    assert page.context["form"].errors.keys() == {"cap", "agent_role"}
    assert 'value="plenty"' in page.content.decode()
    with tenant_scope(tenant.pk):
        assert not Budget.objects.exists()


def test_a_channel_is_disabled_and_reactivated(tenant: Tenant, boss: Person) -> None:
    place = f"{SETTINGS}channels/"
    form = forms_of(boss.get(place))["new"]
    form.send(boss.browser, kind="google-ads", name="Main", details='{"account": "1"}')
    with tenant_scope(tenant.pk):
        channel = Channel.objects.get()

    forms_of(boss.get(f"{place}{channel.pk}/"))["actions"].send(boss.browser, ("action", "disable"))
    assert "disabled" in visible_text(boss.get(place))
    forms_of(boss.get(f"{place}{channel.pk}/"))["actions"].send(boss.browser, ("action", "reactivate"))
    assert "active" in visible_text(boss.get(place))

    again = form.send(boss.browser, kind="google-ads", name="Main", details="{}")
    assert again.status_code == 409
    assert "already" in visible_text(again)


def test_a_webhook_shows_its_secret_once_and_its_deliveries(
    tenant: Tenant, boss: Person, receiver: HttpReceiver
) -> None:
    place = f"{SETTINGS}webhooks/"
    form = forms_of(boss.get(place))["new"]

    created = form.send(boss.browser, url=receiver.url, kinds=["alert.raised"], enabled="on")

    assert created.status_code == 201
    assert created.context["secret"].startswith("whsec_")
    assert created.context["secret"] not in boss.get(place).content.decode()
    with tenant_scope(tenant.pk):
        webhook = WebhookEndpoint.objects.get()
        assert (webhook.kinds, webhook.enabled) == (["alert.raised"], True)

    one = f"{place}{webhook.pk}/"
    forms_of(boss.get(one))["actions"].send(boss.browser, ("action", "test"))
    with tenant_scope(tenant.pk):
        WebhookDelivery.objects.update(state="failed", error="<i>boom</i>", response_status=500)
        delivery = WebhookDelivery.objects.get()
    page = boss.get(one)
    assert "webhook.test failed" in visible_text(page)
    assert "&lt;i&gt;boom&lt;/i&gt;" in page.content.decode()

    forms_of(page)["again"].send(boss.browser, ("action", f"again:{delivery.pk}"))
    with tenant_scope(tenant.pk):
        assert WebhookDelivery.objects.get().state == "pending"
    rotated = forms_of(boss.get(one))["actions"].send(boss.browser, ("action", "rotate"))
    assert rotated.context["secret"] not in ("", created.context["secret"])


def test_a_webhook_to_an_internal_address_is_refused(tenant: Tenant, boss: Person) -> None:
    form = forms_of(boss.get(f"{SETTINGS}webhooks/"))["new"]

    page = form.send(boss.browser, url="http://169.254.169.254/latest/", enabled="on")

    assert page.status_code == 400
    assert page.context["form"].errors.keys() == {"url"}


def test_unknown_settings_pages_are_not_found(boss: Person) -> None:
    assert boss.browser.get(f"{SETTINGS}secrets/").status_code == 404
    missing = "0198c0de-0000-7000-8000-000000000000"
    assert boss.browser.get(f"{SETTINGS}budgets/{missing}/").status_code == 404


def test_budgets_are_listed_with_their_use(tenant: Tenant, boss: Person) -> None:
    half, over = make_budget(tenant, "10", name="Half"), make_budget(tenant, "10", name="Over")
    with tenant_scope(tenant.pk):
        Budget.objects.filter(pk=half.pk).update(spent=5)
        Budget.objects.filter(pk=over.pk).update(spent=12)

    page = boss.get(f"{SETTINGS}budgets/")

    text = visible_text(page)
    assert "50%" in text
    assert "120%" in text
    assert f'href="/settings/budgets/{over.pk}/?tenant=acme"' in page.content.decode()
    assert '<details class="action" id="making">' in page.content.decode(), (
        "the form is collapsed when budgets exist"
    )
