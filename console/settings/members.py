"""The members of a tenant: looked at and arranged by its admins."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse

from console import flash_messages
from console.inbox.items import Refused
from console.internal_api import WordsField
from console.page import ACTING, LOOKING, PageContext, for_admins, page, shown
from tenants import members as tenant_members
from tenants.context import tenant_scope
from tenants.models import Role

from .collections import tabs

NOT_OFFERED = "This page does not offer that."


class RoleForm(forms.Form):
    """What a member may do, and whose inbox items are theirs."""

    role = forms.ChoiceField(choices=[(role.value, role.label) for role in Role])
    human_roles = WordsField(required=False, max_length=500)


class NewMemberForm(RoleForm):
    """A person who becomes a member."""

    username = forms.CharField(label="User name", max_length=150)
    field_order = ("username", "role", "human_roles")


@page("settings", (*LOOKING, *ACTING))
@for_admins("Settings")
def members(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """Who acts for the tenant. A POST changes a role, ends a membership, or adds a person."""
    refusal: Refused | None = None
    form = NewMemberForm(initial={"role": Role.REVIEWER})
    if request.method == "POST":
        try:
            return flash_messages.done(request, visit, reverse("console:settings"), _act(request, visit))
        except Refused as refused:
            refusal = refused
            form = NewMemberForm(request.POST) if request.POST.get("deed") == "add" else form
    with tenant_scope(visit.tenant_id):
        found = [
            (member, tenant_members.fingerprint_of(member))
            for member in tenant_members.members_of(visit.tenant_id)
        ]
    context: dict[str, Any] = {
        "members": found,
        "roles": Role.choices,
        "form": form,
        "refusal": refusal,
        "may_add": visit.who.is_platform_admin,
        "tabs": tabs("members"),
    }
    return shown(request, visit, "console/settings/members.html", context, refusal.status if refusal else 200)


def _act(request: HttpRequest, visit: PageContext) -> str:
    deed, _, member = request.POST.get("deed", "").partition(":")
    try:
        if deed == "add":
            return _add(request, visit)
        if deed == "change":
            seen = request.POST.get(f"seen:{member}", "")
            changed = tenant_members.change_member(
                visit.who, _id(member), *_given(request, member), seen=seen
            )
            return f"{changed.user} acts as {changed.role} now"
        if deed == "end":
            if refusal := flash_messages.refuse_unsure(request):
                raise refusal
            return f"{tenant_members.end_membership(visit.who, _id(member))} is no member any more"
    except tenant_members.ArrangingRefused as error:
        raise Refused(str(error), status=error.status) from error
    raise Refused(NOT_OFFERED, status=400)


def _add(request: HttpRequest, visit: PageContext) -> str:
    form = NewMemberForm(request.POST)
    if not form.is_valid():
        raise Refused("Something is missing: see the form.", status=400, field="username")
    given = form.cleaned_data
    added = tenant_members.add_member(visit.who, given["username"], Role(given["role"]), given["human_roles"])
    return f"{added.user} is a member now"


def _given(request: HttpRequest, member: str) -> tuple[Role, list[str]]:
    form = RoleForm({name: request.POST.get(f"{name}:{member}", "") for name in ("role", "human_roles")})
    if not form.is_valid():
        raise Refused("There is no such role.", status=400, field="role")
    return Role(form.cleaned_data["role"]), form.cleaned_data["human_roles"]


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise Http404 from error
