"""Budgets, channels, notifications and webhooks: lists with a form for one more, and a page for each with what can be done to it.

Everything is read from and changed through the API's own views, so that its rules and its audit trail hold here as well.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse

from console import flash_messages, internal_api
from console.inbox.items import Refused
from console.internal_api import Reply
from console.page import ACTING, LOOKING, PageContext, for_admins, page, shown
from console.settings.collections import COLLECTIONS, Collection
from console.usage import BudgetLine, budgets_of
from tenants.context import tenant_scope

from .collections import tabs

NOT_OFFERED = "This page does not offer that."
MOST_LISTED = 200
LOGGED = 50


@page("settings", (*LOOKING, *ACTING))
@for_admins("Settings")
def collection(request: HttpRequest, visit: PageContext, key: str) -> HttpResponse:
    """All of a kind, and a form for one more. A secret that the API answers is on this page alone."""
    what, secret = _known(key), ""
    form = what.new(request.POST) if request.method == "POST" else what.new()
    if request.method == "POST" and (made := form.send(request, visit.who, "POST", f"/{key}/")):
        if not (secret := made.data.get("secret") or ""):
            words = f"Made: {what.one} {_name_of(what, made.data)}"
            return flash_messages.done(
                request, visit, reverse("console:settings_collection", args=[key]), words
            )
        form = what.new()
    found = internal_api.found(
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
    return shown(request, visit, "console/settings/collection.html", {**context, "tabs": tabs(key)}, status)


@page("settings", (*LOOKING, *ACTING))
@for_admins("Settings")
def item(request: HttpRequest, visit: PageContext, key: str, item_id: UUID) -> HttpResponse:
    """One of them. A POST changes it, does one of its actions, sends a delivery again, or removes it."""
    what, address = _known(key), f"/{key}/{item_id}/"
    present = internal_api.found(internal_api.call_api(request, visit.who, "GET", address))
    refusal: Refused | None = None
    form, secret = what.changed(present=present), ""
    if request.method == "POST":
        try:
            if request.POST.get("deed") == "save":
                form = what.changed(request.POST, present=present)
                if form.send(request, visit.who, "PUT", address, version=_version(request)):
                    return flash_messages.done(request, visit, _here(key, item_id), "Saved")
            else:
                reply, words, onward = _act(request, visit, what, key, item_id)
                secret = _secret_of(reply)
                if not secret:
                    return flash_messages.done(request, visit, onward, words)
        except Refused as refused:
            refusal = refused
        present = internal_api.found(internal_api.call_api(request, visit.who, "GET", address))
    context = {
        "what": what, "key": key, "item_id": item_id, "present": present, "form": form, "refusal": refusal, "secret": secret,
        "facts": [(head, present.get(member)) for head, member in what.columns], "name": _name_of(what, present),
        "version": present["version"], "log": _log(request, visit, address) if what.has_log else None, "tabs": tabs(key),
    }  # fmt: skip
    status = refusal.status if refusal else form.status if form.errors else 200
    return shown(request, visit, "console/settings/item.html", context, status)


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
        place = f"{address}deliveries/{_id(delivery)}/redeliver/"
        reply, words = internal_api.call_api(request, visit.who, "POST", place), "It is sent again"
    elif name == "remove":
        if refusal := flash_messages.refuse_unsure(request):
            raise refusal
        reply = internal_api.call_api(request, visit.who, "DELETE", address, version=_version(request))
        words, here = f"Removed: the {what.one}", reverse("console:settings_collection", args=[key])
    else:
        raise Refused(NOT_OFFERED, status=400)
    if not reply.ok:
        raise flash_messages.refusal_of(reply)
    return reply, words, here


def _budgets(visit: PageContext) -> list[BudgetLine]:
    """As the page of usage shows them: how much of each is used."""
    with tenant_scope(visit.tenant_id):
        return budgets_of(visit.tenant_id)


def _known(key: str) -> Collection:
    if key not in COLLECTIONS:
        raise Http404
    return COLLECTIONS[key]


def _rows(what: Collection, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each with its cells in the order of the heads."""
    return [
        {"id": found["id"], "name": _name_of(what, found), "cells": [(head, _said(name, found)) for head, name in what.columns[1:]]}
        for found in results
    ]  # fmt: skip


def _said(name: str, found: dict[str, Any]) -> Any:
    """A member as a list shows it: of kinds, none are all."""
    return found.get(name) or ("all" if name == "kinds" else found.get(name))


def _log(request: HttpRequest, visit: PageContext, address: str) -> Any:
    reply = internal_api.call_api(request, visit.who, "GET", f"{address}deliveries/", query={"limit": LOGGED})
    return internal_api.found(reply)["results"]


def _name_of(what: Collection, shown_as: Any) -> str:
    return str(shown_as.get(what.columns[0][1]) or "")


def _secret_of(reply: Reply) -> str:
    return str(reply.data.get("secret") or "") if isinstance(reply.data, dict) else ""


def _here(key: str, item_id: UUID) -> str:
    return reverse("console:settings_item", args=[key, item_id])


def _version(request: HttpRequest) -> int | None:
    text = request.POST.get("version", "")
    return int(text[:9]) if text.isdecimal() else None


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise Http404 from error
