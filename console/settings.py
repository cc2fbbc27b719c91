"""Budgets, channels, notifications and webhooks: lists with a form for one more, and a page for each with what can be done to it.

Everything is read from and changed through the API's own views, so that its rules and its audit trail hold here as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django import forms
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse

from activities.models.alert import AlertKind, ChannelKind, Digest, Weekday
from console import internal_api
from console.internal_api import ApiForm, JsonField, Reply, WordsField
from console.page import (
    ACTING,
    LOOKING,
    NOT_OFFERED,
    PageContext,
    Refused,
    id_or_404,
    page,
    redirect_with_success,
    refusal_of,
    refuse_unsure,
    render_page,
)
from console.usage import BudgetLine, budgets_of
from tenants import clock
from tenants import members as tenant_members
from tenants import tokens as tenant_tokens
from tenants.context import tenant_scope
from tenants.models import BudgetPeriod, BudgetUnit, Role
from tenants.models.events import KINDS
from tenants.tokens import InvalidScope

MOST_LISTED = 200
LOGGED = 50


@page("settings", (*LOOKING, *ACTING), for_admins="Settings")
def collection(request: HttpRequest, visit: PageContext, key: str) -> HttpResponse:
    """All of a kind, and a form for one more. A secret that the API answers is on this page alone."""
    what, secret = _find_collection(key), ""
    form = what.new(request.POST) if request.method == "POST" else what.new()
    if request.method == "POST" and (created := form.send(request, visit.who, "POST", f"/{key}/")):
        if not (secret := created.data.get("secret") or ""):
            words = f"Made: {what.one} {_name_of(what, created.data)}"
            return redirect_with_success(
                request, visit, reverse("console:settings_collection", args=[key]), words
            )
        form = what.new()
    found = internal_api.data_or_404(
        internal_api.call_api(request, visit.who, "GET", f"/{key}/", query={"limit": MOST_LISTED})
    )
    context = {
        "what": what,
        "key": key,
        "rows": _rows(what, found["results"]),
        "form": form,
        "secret": secret,
        "budgets": _budgets(visit) if key == "budgets" else (),
    }
    status = form.status if form.errors else 201 if secret else 200
    return render_page(
        request, visit, "console/settings/collection.html", {**context, "tabs": tabs(key)}, status
    )


def _act_on_item(request: HttpRequest, visit: PageContext, key: str, item_id: UUID) -> Any:
    """The form with what is wrong in it, or with a secret beside it; or the answer that says what was done."""
    what, address = _find_collection(key), f"/{key}/{item_id}/"
    present = internal_api.data_or_404(internal_api.call_api(request, visit.who, "GET", address))
    if request.POST.get("deed") == "save":
        form = what.changed(request.POST, present=present)
        if form.send(request, visit.who, "PUT", address, version=_version(request)):
            return redirect_with_success(request, visit, _here(key, item_id), "Saved")
        return form, ""
    reply, words, onward = _act(request, visit, what, key, item_id)
    if not (secret := _secret_of(reply)):
        return redirect_with_success(request, visit, onward, words)
    return what.changed(present=present), secret


@page("settings", act=_act_on_item, for_admins="Settings")
def item(request: HttpRequest, visit: PageContext, key: str, item_id: UUID) -> HttpResponse:
    """One of them. A POST changes it, does one of its actions, sends a delivery again, or removes it."""
    what, address = _find_collection(key), f"/{key}/{item_id}/"
    present = internal_api.data_or_404(internal_api.call_api(request, visit.who, "GET", address))
    form, secret = visit.acted or (what.changed(present=present), "")
    context = {
        "what": what, "key": key, "item_id": item_id, "present": present, "form": form, "secret": secret,
        "facts": [(head, present.get(member)) for head, member in what.columns], "name": _name_of(what, present),
        "version": present["version"], "log": _log(request, visit, address) if what.has_log else None, "tabs": tabs(key),
    }  # fmt: skip
    status = form.status if form.errors else 200
    return render_page(request, visit, "console/settings/item.html", context, status)


def _act(
    request: HttpRequest, visit: PageContext, what: Collection, key: str, item_id: UUID
) -> tuple[Reply, str, str]:
    """What was answered, what to say, and where to go on. Raises `Refused`."""
    name, _, delivery = request.POST.get("deed", "").partition(":")
    address, here = f"/{key}/{item_id}/", _here(key, item_id)
    action = next((each for each in what.actions if each.name == name), None)
    if action is not None:
        version = None if name == "test" else _version(request)
        reply, words = (
            internal_api.call_api(request, visit.who, "POST", f"{address}{name}/", version=version),
            action.done,
        )
    elif name == "again" and what.has_log:
        place = f"{address}deliveries/{id_or_404(delivery)}/redeliver/"
        reply, words = internal_api.call_api(request, visit.who, "POST", place), "It is sent again"
    elif name == "remove":
        if refusal := refuse_unsure(request):
            raise refusal
        reply = internal_api.call_api(request, visit.who, "DELETE", address, version=_version(request))
        words, here = f"Removed: the {what.one}", reverse("console:settings_collection", args=[key])
    else:
        raise Refused(NOT_OFFERED, status=400)
    if not reply.ok:
        raise refusal_of(reply)
    return reply, words, here


def _budgets(visit: PageContext) -> list[BudgetLine]:
    """As the page of usage shows them: how much of each is used."""
    with tenant_scope(visit.tenant_id):
        return budgets_of(visit.tenant_id)


def _find_collection(key: str) -> Collection:
    if key not in COLLECTIONS:
        raise Http404
    return COLLECTIONS[key]


def _rows(what: Collection, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each with its cells in the order of the heads."""
    return [
        {"id": found["id"], "name": _name_of(what, found), "cells": [(head, _show_member(name, found)) for head, name in what.columns[1:]]}
        for found in results
    ]  # fmt: skip


def _show_member(name: str, found: dict[str, Any]) -> Any:
    """A member as a list shows it: of kinds, none are all."""
    return found.get(name) or ("all" if name == "kinds" else found.get(name))


def _log(request: HttpRequest, visit: PageContext, address: str) -> Any:
    reply = internal_api.call_api(request, visit.who, "GET", f"{address}deliveries/", query={"limit": LOGGED})
    return internal_api.data_or_404(reply)["results"]


def _name_of(what: Collection, shown_as: Any) -> str:
    return str(shown_as.get(what.columns[0][1]) or "")


def _secret_of(reply: Reply) -> str:
    return str(reply.data.get("secret") or "") if isinstance(reply.data, dict) else ""


def _here(key: str, item_id: UUID) -> str:
    return reverse("console:settings_item", args=[key, item_id])


def _version(request: HttpRequest) -> int | None:
    text = request.POST.get("version", "")
    return int(text[:9]) if text.isdecimal() else None


# What a tenant's admins arrange through the API: which parts there are, what a list shows of each, and what can be done to one.

# Forms with which admins arrange budgets, channels and webhooks. What is right is for the API to say.

CHOSEN = forms.CheckboxSelectMultiple


class SettingsForm(ApiForm):
    """Base: `present` is what the API shows of the one that is changed, None for a new one."""

    kept: tuple[str, ...] = ()  # members that cannot be changed and are sent as they are

    def __init__(self, data: Any = None, *, present: Mapping[str, Any] | None = None) -> None:
        super().__init__(data, initial=dict(present or {}))
        self.present = present or {}

    def body(self) -> dict[str, Any]:
        fixed = {name: self.present[name] for name in self.kept if self.present.get(name) is not None}
        return {**{name: str(value) for name, value in fixed.items()}, **super().body()}


class ChangedBudget(SettingsForm):
    """What of a budget can be changed; what it counts stays."""

    kept = ("agent_role", "deliverable", "activity", "unit", "period")

    name = forms.CharField(max_length=200)
    cap = forms.CharField(max_length=40, help_text="In the unit that is chosen. With 0 nothing starts.")
    warning_share = forms.CharField(
        label="Warn at this share",
        required=False,
        max_length=8,
        initial="0.8",
        help_text="With 0.8 people are told when 80% is spent.",
    )
    estimate = forms.CharField(
        label="Kept for each run",
        required=False,
        max_length=40,
        help_text="Leave empty to keep what runs took lately.",
    )


class NewBudget(ChangedBudget):
    """A budget with what it counts."""

    agent_role = forms.CharField(
        label="Role", required=False, max_length=63, help_text="Leave empty for all roles."
    )
    unit = forms.ChoiceField(choices=BudgetUnit.choices, initial=BudgetUnit.DOLLARS)
    period = forms.ChoiceField(choices=BudgetPeriod.choices, initial=BudgetPeriod.MONTH)
    field_order = ("name", "agent_role", "unit", "period", "cap", "warning_share", "estimate")


class ChannelForm(SettingsForm):
    """A connection of the tenant's to the outside."""

    kind = forms.CharField(max_length=63, help_text="For example google-ads.")
    name = forms.CharField(max_length=200)
    expires_at = forms.CharField(
        label="Expires at", required=False, max_length=40, help_text="For example 2027-05-01T09:30:00Z."
    )
    details = JsonField(required=False, help_text="For agents: account numbers and the like. No secrets.")


class ChangedNotification(SettingsForm):
    """Where people are told of alerts. A target that is left empty stays as it is."""

    name = forms.CharField(max_length=100)
    target = forms.CharField(
        required=False,
        max_length=2_000,
        help_text="A URL for slack and webhook, addresses separated by commas for email. Leave empty to keep it.",
    )
    kinds = forms.MultipleChoiceField(
        label="Alerts (choose none for all)", required=False, choices=AlertKind.choices, widget=CHOSEN
    )
    digest = forms.ChoiceField(
        required=False,
        choices=Digest.choices,
        initial=Digest.OFF,
        help_text="For email: a summary each day or each week.",
    )
    digest_hour = forms.IntegerField(
        required=False,
        min_value=0,
        max_value=23,
        help_text="In the tenant's time zone. Empty: 7 for daily digests, 9 for weekly ones, unless the platform says otherwise.",
    )
    digest_day = forms.ChoiceField(
        required=False,
        choices=[("", "Monday, unless chosen"), *Weekday.choices],
        help_text="Of weekly digests.",
    )
    digest_roles = WordsField(
        label="Human roles of the digest",
        required=False,
        max_length=2_000,
        help_text="Whose waiting items it tells of. Empty: all.",
    )
    enabled = forms.BooleanField(label="Switched on", required=False, initial=True)

    def __init__(self, data: Any = None, *, present: Mapping[str, Any] | None = None) -> None:
        # What is shown of a target is no target.
        super().__init__(
            data, present={name: value for name, value in (present or {}).items() if name != "target"}
        )


class NewNotification(ChangedNotification):
    """One more place."""

    kind = forms.ChoiceField(choices=ChannelKind.choices, initial=ChannelKind.EMAIL)
    target = forms.CharField(
        max_length=2_000, help_text="A URL for slack and webhook, addresses separated by commas for email."
    )
    field_order = (
        "kind",
        "name",
        "target",
        "kinds",
        "digest",
        "digest_hour",
        "digest_day",
        "digest_roles",
        "enabled",
    )


class WebhookForm(SettingsForm):
    """Where events are sent."""

    url = forms.CharField(label="Address", max_length=2_000)
    description = forms.CharField(required=False, max_length=200)
    kinds = forms.MultipleChoiceField(
        label="Events (choose none for all)",
        required=False,
        choices=[(kind, kind) for kind in KINDS],
        widget=CHOSEN,
    )
    enabled = forms.BooleanField(label="Switched on", required=False, initial=True)


@dataclass(frozen=True, slots=True)
class Action:
    """Something that is done to one of them, by a POST to its address and `path`. `ask` is what the person must confirm."""

    name: str
    label: str
    done: str
    tone: str = "quiet"
    ask: str = ""


@dataclass(frozen=True, slots=True)
class Collection:
    """One part. `columns` are heads with members of what the API shows; the first of them leads to the page of one."""

    words: str
    one: str
    about: str
    columns: tuple[tuple[str, str], ...]
    new: type[SettingsForm]
    changed: type[SettingsForm]
    actions: tuple[Action, ...] = ()
    removal: str = ""
    has_log: bool = False


#: By the name of the collection in the API's addresses.
COLLECTIONS: Mapping[str, Collection] = {
    "budgets": Collection(
        "Budgets", "budget",
        "How much runs may consume. In force within two seconds; what a new one's period has seen already counts.",
        (("Name", "name"), ("Role", "agent_role"), ("Unit", "unit"), ("Period", "period"), ("Cap", "cap"), ("Spent", "spent"),
         ("Kept", "reserved")),
        NewBudget, ChangedBudget,
        removal="It counts no more, and what waits for it goes on. The ledger keeps what was spent.",
    ),
    "channels": Collection(
        "Channels", "channel", "Connections to the outside that agents rely on, and whether they still open anything.",
        (("Name", "name"), ("Kind", "kind"), ("Status", "status"), ("Expires", "expires_at")),
        ChannelForm, ChannelForm,
        (Action("expire", "Has expired", "Said to have expired", ask="Raise an alert that it opens nothing any more?"),
         Action("disable", "Switch off", "Switched off"), Action("reactivate", "Works again", "Works again", "good")),
        removal="Agents are not told of it any more.",
    ),
    "notification-channels": Collection(
        "Notifications", "notification channel", "Where people are told of alerts. A target goes in and is not shown again.",
        (("Name", "name"), ("Kind", "kind"), ("Target", "target"), ("Alerts", "kinds"), ("On", "enabled")),
        NewNotification, ChangedNotification,
        (Action("test", "Send a test", "A test is on its way"),
         Action("renew-secret", "New secret", "It has a new secret", ask="Messages are signed with both until the next renewal.")),
        removal="What is still on its way there is not sent any more.",
    ),
    "webhooks": Collection(
        "Webhooks", "webhook", "Where events are sent. A secret is shown once, when it is made.",
        (("Address", "url"), ("Description", "description"), ("Events", "kinds"), ("On", "enabled"), ("Switched off because", "off_reason"),
         ("Failing since", "failing_since")),
        WebhookForm, WebhookForm,
        (Action("test", "Send a test", "A test is on its way"),
         Action("rotate", "New secret", "It has a new secret", ask="The one before signs as well for 24 hours.")),
        removal="What is still on its way there is not sent any more, and its log goes with it.",
        has_log=True,
    ),
}  # fmt: skip


# The parts of a tenant's settings, in their order.


@dataclass(frozen=True, slots=True)
class Tab:
    """One part. `key` is empty for those with an address of their own, `name` is that address's."""

    words: str
    name: str
    key: str
    is_here: bool


def tabs(here: str) -> list[Tab]:
    """All parts. `here` is the one that is looked at."""
    own = [
        Tab("Members", "settings", "", here == "members"),
        Tab("Tokens", "settings_tokens", "", here == "tokens"),
    ]
    return own + [
        Tab(each.words, "settings_collection", key, here == key) for key, each in COLLECTIONS.items()
    ]


# The members of a tenant: looked at and arranged by its admins.


class RoleForm(forms.Form):
    """What a member may do, and whose inbox items are theirs."""

    role = forms.ChoiceField(choices=[(role.value, role.label) for role in Role])
    human_roles = WordsField(required=False, max_length=500)


class NewMemberForm(RoleForm):
    """A person who becomes a member."""

    username = forms.CharField(label="User name", max_length=150)
    field_order = ("username", "role", "human_roles")


def _arrange_member(request: HttpRequest, visit: PageContext) -> str:
    action, _, member = request.POST.get("deed", "").partition(":")
    if action == "add":
        return _add(request, visit)
    if action == "change":
        seen = request.POST.get(f"seen:{member}", "")
        changed = tenant_members.change_member(
            visit.who, id_or_404(member), *_read_role(request, member), seen=seen
        )
        return f"{changed.user} acts as {changed.role} now"
    if action == "end":
        if refusal := refuse_unsure(request):
            raise refusal
        return f"{tenant_members.end_membership(visit.who, id_or_404(member))} is no member any more"
    raise Refused(NOT_OFFERED, status=400)


def _act_on_members(request: HttpRequest, visit: PageContext) -> HttpResponse:
    try:
        return redirect_with_success(
            request, visit, reverse("console:settings"), _arrange_member(request, visit)
        )
    except tenant_members.ArrangingRefused as error:
        raise Refused(str(error), status=error.status) from error


@page("settings", act=_act_on_members, for_admins="Settings")
def members(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """Who acts for the tenant. A POST changes a role, ends a membership, or adds a person."""
    adds = request.POST.get("deed") == "add"
    form = NewMemberForm(request.POST) if adds else NewMemberForm(initial={"role": Role.REVIEWER})
    with tenant_scope(visit.tenant_id):
        found = [
            (member, tenant_members.fingerprint_of(member))
            for member in tenant_members.members_of(visit.tenant_id)
        ]
    context: dict[str, Any] = {
        "members": found,
        "roles": Role.choices,
        "form": form,
        "may_add": visit.who.is_platform_admin,
        "tabs": tabs("members"),
    }
    return render_page(request, visit, "console/settings/members.html", context)


def _add(request: HttpRequest, visit: PageContext) -> str:
    form = NewMemberForm(request.POST)
    if not form.is_valid():
        raise Refused("Something is missing: see the form.", status=400, field="username")
    cleaned = form.cleaned_data
    added = tenant_members.add_member(
        visit.who, cleaned["username"], Role(cleaned["role"]), cleaned["human_roles"]
    )
    return f"{added.user} is a member now"


def _read_role(request: HttpRequest, member: str) -> tuple[Role, list[str]]:
    form = RoleForm({name: request.POST.get(f"{name}:{member}", "") for name in ("role", "human_roles")})
    if not form.is_valid():
        raise Refused("There is no such role.", status=400, field="role")
    return Role(form.cleaned_data["role"]), form.cleaned_data["human_roles"]


# API tokens: made and revoked by admins of the tenant. A secret is on the page that answers its making, and on no other.

LONGEST_DAYS = 3650


class TokenForm(forms.Form):
    """What a token may do, and for how long."""

    name = forms.CharField(max_length=100, help_text="To recognise it by.")
    role = forms.ChoiceField(choices=Role.choices, initial=Role.OPERATOR)
    days = forms.IntegerField(
        label="Expires after so many days",
        required=False,
        min_value=1,
        max_value=LONGEST_DAYS,
        help_text="Leave empty for a token that never expires.",
    )
    scopes = WordsField(
        required=False,
        max_length=500,
        help_text="Leave empty for everything that the role may do. Otherwise read, write, or parts such as activities:read.",
    )


def _act_on_tokens(request: HttpRequest, visit: PageContext) -> Any:
    """The form, and the token with its secret if one was made; or the answer that says what was revoked."""
    if request.POST.get("deed") != "make":
        return redirect_with_success(
            request, visit, reverse("console:settings_tokens"), _revoke(request, visit)
        )
    form = TokenForm(request.POST)
    return form, _make(visit, form) if form.is_valid() else None


@page("settings", act=_act_on_tokens, for_admins="Settings")
def tokens(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The tokens of the tenant. A POST makes one, whose secret this answer alone shows, or revokes one."""
    sent = request.POST if request.POST.get("deed") == "make" else None
    form, token = visit.acted or (TokenForm(sent), None)
    with tenant_scope(visit.tenant_id):
        found = tenant_tokens.tokens_of(visit.tenant_id)
    context: dict[str, Any] = {
        "tokens": found,
        "now": clock.now(),
        "form": TokenForm() if token else form,
        "made": token,
        "tabs": tabs("tokens"),
    }
    status = 201 if token else 400 if form.errors else 200
    return render_page(request, visit, "console/settings/tokens.html", context, status)


def _make(visit: PageContext, form: TokenForm) -> Any:
    cleaned = form.cleaned_data
    lasting = timedelta(days=cleaned["days"]) if cleaned["days"] else None
    try:
        token, secret = tenant_tokens.mint(
            visit.who, cleaned["name"], Role(cleaned["role"]), lasting=lasting, scopes=cleaned["scopes"]
        )
    except InvalidScope as error:
        form.add_error("scopes", str(error))
        return None
    except tenant_tokens.MintingRefused as error:
        raise Refused(str(error), status=error.status) from error
    return {"token": token, "secret": secret}


def _revoke(request: HttpRequest, visit: PageContext) -> str:
    action, _, token = request.POST.get("deed", "").partition(":")
    if action != "revoke":
        raise Refused(NOT_OFFERED, status=400)
    if refusal := refuse_unsure(request):
        raise refusal
    try:
        revoked = tenant_tokens.revoke_by_admin(visit.who, id_or_404(token))
    except tenant_tokens.MintingRefused as error:
        raise Refused(str(error), status=error.status) from error
    return f"Revoked: {revoked.name}. Within a second nobody can use it"
