"""Pages of the settings: members, tokens, budgets, channels, notification channels and webhooks.

Budgets, channels, notification channels and webhooks are read and changed through the API's views, so its rules and audit trail apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django import forms
from django.http import Http404, HttpRequest, HttpResponse
from rest_framework import serializers

from activities.api.alerts import ChangedChannelSerializer, NewChannelSerializer
from activities.api.webhooks import WebhookBodySerializer
from agents.api.budgets import BudgetBodySerializer
from console.internal_api import ApiForm, JsonField, NamesField, WordsField
from console.page import (
    ACTING,
    LOOKING,
    NOT_OFFERED,
    PageContext,
    Refused,
    id_or_404,
    number_in,
    page,
    refuse_unsure,
)
from console.usage import budgets_of
from tenants import clock
from tenants import members as tenant_members
from tenants import tokens as tenant_tokens
from tenants.api.channels import ChannelBodySerializer
from tenants.api.serializers import StrictSerializer
from tenants.context import tenant_scope
from tenants.models import Membership, Role
from tenants.tokens import InvalidScope

MOST_LISTED = 200
LOGGED = 50  # listed deliveries


@page("settings", (*LOOKING, *ACTING), for_admins="Settings")
def collection(request: HttpRequest, visit: PageContext, key: str) -> HttpResponse:
    """A list of objects, with the form of a new one. Only the response to the creation displays a secret."""
    what, secret = _find_collection(key), ""
    form = what.new(request.POST) if request.method == "POST" else what.new()
    if request.method == "POST" and (created := form.send(visit, "POST", f"/{key}/")):
        if not (secret := created.data.get("secret") or ""):
            words = f"Created: {what.one} {_name_of(what, created.data)}"
            return visit.redirect(words, "settings_collection", key)
        form = what.new()
    listed = visit.read(f"/{key}/", limit=MOST_LISTED)
    with tenant_scope(visit.tenant_id):
        # With their use, as on the usage page.
        budgets = budgets_of(visit.tenant_id) if key == "budgets" else []
    context = {
        "what": what,
        "key": key,
        "rows": [(each["id"], _name_of(what, each), _cells(what, each)) for each in listed["results"]],
        "form": form,
        "secret": secret,
        "budgets": budgets,
    }
    return visit.render(
        "console/settings/collection.html", {**context, "tabs": tabs(key)}, 201 if secret else 200
    )


def _act_on_item(request: HttpRequest, visit: PageContext, key: str, item_id: UUID) -> Any:
    """Perform the action. Return a redirect, or the form with its errors or a new secret."""
    what, address = _find_collection(key), f"/{key}/{item_id}/"
    present = visit.read(address)
    if request.POST.get("action") == "save":
        form = what.changed(request.POST, present=present)
        if form.send(visit, "PUT", address, version=_version(request)):
            return visit.redirect("Saved", "settings_item", key, item_id)
        return form, ""
    reply, words, *place = _act(request, visit, what, key, item_id)
    secret = str(reply.data.get("secret") or "") if isinstance(reply.data, dict) else ""
    if not secret:
        return visit.redirect(words, *place)
    return what.changed(present=present), secret


@page("settings", act=_act_on_item, for_admins="Settings")
def item(request: HttpRequest, visit: PageContext, key: str, item_id: UUID) -> HttpResponse:
    """One object. A POST changes it, performs one of its actions, resends a delivery, or removes it."""
    what, address = _find_collection(key), f"/{key}/{item_id}/"
    present = visit.read(address)
    form, secret = visit.acted or (what.changed(present=present), "")
    log = visit.read(f"{address}deliveries/", limit=LOGGED)["results"] if what.has_log else None
    context = {
        "what": what, "key": key, "item_id": item_id, "present": present, "form": form, "secret": secret,
        "facts": [(head, present.get(member)) for head, member in what.columns], "name": _name_of(what, present),
        "version": present["version"], "log": log, "tabs": tabs(key),
    }  # fmt: skip
    return visit.render("console/settings/item.html", context)


def _act(
    request: HttpRequest, visit: PageContext, what: Collection, key: str, item_id: UUID
) -> tuple[Any, ...]:
    """Return the reply, the message, and the page to redirect to, with its place. Raises `Refused`."""
    name, _, delivery = request.POST.get("action", "").partition(":")
    address = f"/{key}/{item_id}/"
    action = next((each for each in what.actions if each.name == name), None)
    if action is not None:
        version = None if name == "test" else _version(request)
        reply = visit.act("POST", f"{address}{name}/", version=version)
        words = action.done
    elif name == "again" and what.has_log:
        place = f"{address}deliveries/{id_or_404(delivery)}/redeliver/"
        reply = visit.act("POST", place)
        words = "The delivery is being resent"
    elif name == "remove":
        refuse_unsure(request)
        reply = visit.act("DELETE", address, version=_version(request))
        return reply, f"Removed: the {what.one}", "settings_collection", key
    else:
        raise Refused(NOT_OFFERED, status=400)
    return reply, words, "settings_item", key, item_id


def _find_collection(key: str) -> Collection:
    if key not in COLLECTIONS:
        raise Http404
    return COLLECTIONS[key]


def _cells(what: Collection, data: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the titles and values of the columns after the name. An empty list of kinds means all."""
    return [
        (head, data.get(name) or ("all" if name == "kinds" else data.get(name)))
        for head, name in what.columns[1:]
    ]


def _name_of(what: Collection, data: Any) -> str:
    return str(data.get(what.columns[0][1]) or "")


def _version(request: HttpRequest) -> int | None:
    return number_in(request.POST.get("version", ""))


# Forms of budgets, channels and webhooks, derived from the bodies that the API accepts and validates.


class SettingsForm(ApiForm):
    """Base of these forms. `present` is the API's data of the existing object, None for a new one."""

    kept: tuple[str, ...] = ()  # members that cannot be changed and are sent unchanged

    def __init__(self, data: Any = None, *, present: Mapping[str, Any] | None = None) -> None:
        super().__init__(data, initial=dict(present or {}))
        self.present = present or {}

    def body(self) -> dict[str, Any]:
        fixed = {name: self.present[name] for name in self.kept if self.present.get(name) is not None}
        return {**{name: str(value) for name, value in fixed.items()}, **super().body()}


class ChannelOfNotifications(SettingsForm):
    """The API masks the target in its answers, so it must not be sent back."""

    def __init__(self, data: Any = None, *, present: Mapping[str, Any] | None = None) -> None:
        shown = {name: value for name, value in (present or {}).items() if name != "target"}
        super().__init__(data, present=shown)


def form_of(
    body: type[StrictSerializer],
    *,
    base: type[SettingsForm] = SettingsForm,
    without: tuple[str, ...] = (),
    kept: tuple[str, ...] = (),
    initial: Mapping[str, str] | None = None,
    **help_texts: str,
) -> type[SettingsForm]:
    """Return the form of a body. `help_texts` replace those of the API."""
    fields = {
        name: _field_of(member, help_texts.get(name, str(member.help_text or "")), (initial or {}).get(name))
        for name, member in body().fields.items()
        if name not in (*without, *kept)
    }
    return type(body.__name__.replace("Serializer", "Form"), (base,), {**fields, "kept": kept})


def _field_of(member: Any, help_text: str, initial: str | None) -> forms.Field:
    options: dict[str, Any] = {"required": member.required, "help_text": help_text, "initial": initial}
    if isinstance(member, serializers.BooleanField):
        return forms.BooleanField(**options | {"required": False, "initial": True})
    if isinstance(member, serializers.IntegerField):
        return forms.IntegerField(min_value=member.min_value, max_value=member.max_value, **options)
    if isinstance(member, serializers.DictField):
        return JsonField(**options)
    if isinstance(member, serializers.ChoiceField):
        empty = [] if member.required else [("", "\u2013")]
        return forms.ChoiceField(choices=[*empty, *_choices(member)], **options)
    if isinstance(member, serializers.ListField) and isinstance(member.child, serializers.ChoiceField):
        boxes = forms.CheckboxSelectMultiple
        return forms.MultipleChoiceField(choices=_choices(member.child), widget=boxes, **options)
    kind = WordsField if isinstance(member, serializers.ListField) else forms.CharField
    return kind(max_length=2_000, **options)


def _choices(member: Any) -> list[tuple[str, str]]:
    return [(value, value.replace("_", " ")) for value in member.choices]


@dataclass(frozen=True, slots=True)
class Action:
    """An action on an object, by a POST to its address and `name`. `ask` is the question of the confirmation."""

    name: str
    label: str
    done: str
    tone: str = "quiet"
    ask: str = ""


@dataclass(frozen=True, slots=True)
class Collection:
    """A kind of objects. `columns` are titles with members of the API's data; the first one links to the object's page."""

    words: str
    one: str
    about: str
    columns: tuple[tuple[str, str], ...]
    new: type[SettingsForm]
    changed: type[SettingsForm]
    actions: tuple[Action, ...] = ()
    removal: str = ""
    has_log: bool = False


CAP = "In the chosen unit. With 0 nothing starts."
TARGET = "A URL for slack and webhook, addresses separated by commas for email."
CHANNEL = form_of(ChannelBodySerializer, expires_at="For example 2027-05-01T09:30:00Z.")
WEBHOOK = form_of(WebhookBodySerializer)
#: By the name of the collection in the API's addresses.
COLLECTIONS: Mapping[str, Collection] = {
    "budgets": Collection(
        "Budgets", "budget",
        "Limits of what runs may consume. Changes take effect within two seconds. A new budget also counts the past usage of its period.",
        (("Name", "name"), ("Role", "agent_role"), ("Unit", "unit"), ("Period", "period"), ("Cap", "cap"), ("Spent", "spent"),
         ("Reserved", "reserved")),
        form_of(BudgetBodySerializer, without=("deliverable", "activity"), initial={"unit": "dollars", "period": "month"},
                agent_role="Leave empty for all roles.", cap=CAP),
        form_of(BudgetBodySerializer, kept=("agent_role", "deliverable", "activity", "unit", "period"), cap=CAP),
        removal="The limit ends, and work that waits for it continues. The ledger keeps the spending.",
    ),
    "channels": Collection(
        "Channels", "channel", "Connections to external services that agents need, and whether they still work.",
        (("Name", "name"), ("Kind", "kind"), ("Status", "status"), ("Expires", "expires_at")),
        CHANNEL, CHANNEL,
        (Action("expire", "Mark as expired", "Marked as expired", ask="Mark it as expired and raise an alert?"),
         Action("disable", "Disable", "Disabled"), Action("reactivate", "Reactivate", "Reactivated", "good")),
        removal="Agents no longer see it.",
    ),
    "notification-channels": Collection(
        "Notifications", "notification channel", "Where alerts are sent. A target cannot be displayed again.",
        (("Name", "name"), ("Kind", "kind"), ("Target", "target"), ("Alerts", "kinds"), ("Enabled", "enabled")),
        form_of(NewChannelSerializer, base=ChannelOfNotifications, target=TARGET),
        form_of(ChangedChannelSerializer, base=ChannelOfNotifications, target=f"{TARGET} Leave empty to keep the present one."),
        (Action("test", "Send a test", "A test is being sent"),
         Action("renew-secret", "Renew secret", "The secret was renewed",
                ask="Renew the secret? Messages are signed with both until the next renewal.")),
        removal="Pending messages are not sent.",
    ),
    "webhooks": Collection(
        "Webhooks", "webhook", "Where events are sent. A secret is displayed only once, when it is created.",
        (("Address", "url"), ("Description", "description"), ("Events", "kinds"), ("Enabled", "enabled"),
         ("Disabled because", "off_reason"), ("Failing since", "failing_since")),
        WEBHOOK, WEBHOOK,
        (Action("test", "Send a test", "A test is being sent"),
         Action("rotate", "Rotate secret", "The secret was rotated", ask="Rotate the secret? The old one also signs for 24 hours.")),
        removal="Pending events are not sent, and the log of deliveries is deleted.",
        has_log=True,
    ),
}  # fmt: skip


def tabs(here: str) -> list[tuple[str, str, str, bool]]:
    """Return all tabs: the label, the name of the URL, its argument or an empty text, and whether it is the current one."""
    own = [
        ("Members", "settings", "", here == "members"),
        ("Tokens", "settings_tokens", "", here == "tokens"),
    ]
    listed = COLLECTIONS.items()
    return own + [(each.words, "settings_collection", key, here == key) for key, each in listed]


class RoleForm(forms.Form):
    role = forms.ChoiceField(choices=[(role.value, role.label) for role in Role])
    human_roles = NamesField(required=False, max_length=500)


class NewMemberForm(RoleForm):
    username = forms.CharField(label="User name", max_length=150)
    field_order = ("username", "role", "human_roles")


def _arrange_member(request: HttpRequest, visit: PageContext) -> str:
    action, _, member = request.POST.get("action", "").partition(":")
    if action == "add":
        return _add(request, visit)
    if action == "change":
        seen = request.POST.get(f"seen:{member}", "")
        changed = tenant_members.change_member(
            visit.who, id_or_404(member), *_read_role(request, member), seen=seen
        )
        return f"{changed.user} now has the role {changed.role}"
    if action == "end":
        refuse_unsure(request)
        return f"{tenant_members.end_membership(visit.who, id_or_404(member))} is no longer a member"
    raise Refused(NOT_OFFERED, status=400)


def _act_on_members(request: HttpRequest, visit: PageContext) -> HttpResponse:
    return visit.redirect(_arrange_member(request, visit), "settings")


@page("settings", act=_act_on_members, for_admins="Settings")
def members(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The members of the tenant. A POST changes a role, ends a membership, or adds a person."""
    adds = request.POST.get("action") == "add"
    form = NewMemberForm(request.POST) if adds else NewMemberForm(initial={"role": Role.REVIEWER})
    with tenant_scope(visit.tenant_id):
        listed = [
            (member, tenant_members.fingerprint_of(member), _roles_typed(request, visit, member))
            for member in tenant_members.members_of(visit.tenant_id)
        ]
    context: dict[str, Any] = {
        "members": listed,
        "roles": Role.choices,
        "form": form,
        "may_add": visit.who.is_platform_admin,
        "tabs": tabs("members"),
    }
    return visit.render("console/settings/members.html", context)


def _roles_typed(request: HttpRequest, visit: PageContext, member: Membership) -> dict[str, str]:
    """Return the values of a member's fields: after a refusal what was typed, otherwise the stored ones."""
    stored = {"role": member.role, "human_roles": ", ".join(member.human_roles)}
    sent = request.POST if visit.refusal else {}
    return {name: sent.get(f"{name}:{member.pk}", value) for name, value in stored.items()}


def _add(request: HttpRequest, visit: PageContext) -> str:
    form = NewMemberForm(request.POST)
    if not form.is_valid():
        raise Refused("The form is incomplete.", status=400, field="username")
    cleaned = form.cleaned_data
    added = tenant_members.add_member(
        visit.who, cleaned["username"], Role(cleaned["role"]), cleaned["human_roles"]
    )
    return f"{added.user} is now a member"


def _read_role(request: HttpRequest, member: str) -> tuple[Role, list[str]]:
    form = RoleForm({name: request.POST.get(f"{name}:{member}", "") for name in ("role", "human_roles")})
    for name, errors in form.errors.items():
        raise Refused(f"{form[name].label}: {errors[0]}", status=400, field=f"{name}:{member}")
    return Role(form.cleaned_data["role"]), form.cleaned_data["human_roles"]


# API tokens. Only the response to the creation of a token displays its secret.


class TokenForm(forms.Form):
    name = forms.CharField(max_length=100, help_text="A name to recognize it.")
    role = forms.ChoiceField(choices=Role.choices, initial=Role.OPERATOR)
    days = forms.IntegerField(
        label="Expires after (days)",
        required=False,
        min_value=1,
        max_value=tenant_tokens.LONGEST_DAYS,
        help_text="Leave empty for a token that never expires.",
    )
    scopes = WordsField(
        required=False,
        max_length=500,
        help_text="Leave empty for all permissions of the role. Otherwise read, write, or parts such as activities:read.",
    )


def _act_on_tokens(request: HttpRequest, visit: PageContext) -> Any:
    """Create or revoke a token. Return the form with the new token, if any, or a redirect."""
    if request.POST.get("action") != "make":
        return visit.redirect(_revoke(request, visit), "settings_tokens")
    form = TokenForm(request.POST)
    return form, _make(visit, form) if form.is_valid() else None


@page("settings", act=_act_on_tokens, for_admins="Settings")
def tokens(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The tokens of the tenant. A POST creates one, and displays its secret, or revokes one."""
    sent = request.POST if request.POST.get("action") == "make" else None
    form, token = visit.acted or (TokenForm(sent), None)
    with tenant_scope(visit.tenant_id):
        listed = tenant_tokens.tokens_of(visit.tenant_id)
    context: dict[str, Any] = {
        "tokens": listed,
        "now": clock.now(),
        "form": TokenForm() if token else form,
        "made": token,
        "tabs": tabs("tokens"),
    }
    status = 201 if token else 400 if form.errors else 200
    return visit.render("console/settings/tokens.html", context, status)


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
    return {"token": token, "secret": secret}


def _revoke(request: HttpRequest, visit: PageContext) -> str:
    action, _, token = request.POST.get("action", "").partition(":")
    if action != "revoke":
        raise Refused(NOT_OFFERED, status=400)
    refuse_unsure(request)
    revoked = tenant_tokens.revoke_by_admin(visit.who, id_or_404(token))
    return f"Revoked: {revoked.name}. It stops working within a second"
