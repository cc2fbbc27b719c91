"""API tokens: made and revoked by admins of the tenant. A secret is on the page that answers its making, and on no other."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django import forms
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse

from console import flash_messages
from console.inbox.items import Refused
from console.internal_api import WordsField
from console.page import ACTING, LOOKING, PageContext, for_admins, page, shown
from tenants import clock
from tenants import tokens as tenant_tokens
from tenants.context import tenant_scope
from tenants.models import Role
from tenants.tokens import InvalidScope

from .collections import tabs

NOT_OFFERED = "This page does not offer that."
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


@page("settings", (*LOOKING, *ACTING))
@for_admins("Settings")
def tokens(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The tokens of the tenant. A POST makes one, whose secret this answer alone shows, or revokes one."""
    refusal: Refused | None = None
    form, made = TokenForm(), None
    if request.method == "POST":
        try:
            if request.POST.get("deed") == "make":
                form = TokenForm(request.POST)
                made = _make(visit, form)
            else:
                return flash_messages.done(
                    request, visit, reverse("console:settings_tokens"), _revoke(request, visit)
                )
        except Refused as refused:
            refusal = refused
    with tenant_scope(visit.tenant_id):
        found = tenant_tokens.tokens_of(visit.tenant_id)
    context: dict[str, Any] = {
        "tokens": found,
        "now": clock.now(),
        "form": TokenForm() if made else form,
        "made": made,
        "refusal": refusal,
        "tabs": tabs("tokens"),
    }
    status = refusal.status if refusal else 201 if made else 400 if form.errors else 200
    return shown(request, visit, "console/settings/tokens.html", context, status)


def _make(visit: PageContext, form: TokenForm) -> Any:
    if not form.is_valid():
        return None
    given = form.cleaned_data
    lasting = timedelta(days=given["days"]) if given["days"] else None
    try:
        token, secret = tenant_tokens.mint(
            visit.who, given["name"], Role(given["role"]), lasting=lasting, scopes=given["scopes"]
        )
    except InvalidScope as error:
        form.add_error("scopes", str(error))
        return None
    except tenant_tokens.MintingRefused as error:
        raise Refused(str(error), status=error.status) from error
    return {"token": token, "secret": secret}


def _revoke(request: HttpRequest, visit: PageContext) -> str:
    deed, _, token = request.POST.get("deed", "").partition(":")
    if deed != "revoke":
        raise Refused(NOT_OFFERED, status=400)
    if refusal := flash_messages.refuse_unsure(request):
        raise refusal
    try:
        revoked = tenant_tokens.revoke_by_admin(visit.who, UUID(token))
    except ValueError as error:
        raise Http404 from error
    except tenant_tokens.MintingRefused as error:
        raise Refused(str(error), status=error.status) from error
    return f"Revoked: {revoked.name}. Within a second nobody can use it"
