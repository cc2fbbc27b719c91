"""Deeds: what people do to rows from a list or from a row's page. They are asked first, then told about each row.

A button is a link, and a link must change nothing: it leads to a page that says what would happen and to which rows. Only the form on
that page acts. Rows are done one by one, each in its own transaction; one that cannot be done is skipped with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin import helpers
from django.db import DatabaseError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget

from tenants.admin.bases import KeptAdmin, page_of
from tenants.admin.permissions import may_write

CONFIRMED, BACK = "confirmed", "back"  # fields of the page that asks
NAMED = 20  # rows that a message names one by one


@dataclass(frozen=True, slots=True)
class Action:
    """`action` is the name of the list's action; `refusals` are the errors that skip a row, with their text as the reason."""

    action: str
    title: str
    done: str
    explanation: str
    refusals: tuple[type[Exception], ...]
    notes: str = ""  # what to ask for; empty: nothing
    notes_needed: bool = False
    danger: bool = False
    choice: str = ""  # what to choose; empty: nothing
    choices: Callable[[], list[tuple[str, Any]]] | None = (
        None  # as Django's choices, asked for when the page is shown
    )


class NotesForm(forms.Form):
    """The words that go with a deed."""

    choice = forms.ChoiceField(widget=UnfoldAdminSelectWidget())
    notes = forms.CharField(
        max_length=10_000, widget=UnfoldAdminTextareaWidget(attrs={"rows": 4, "autofocus": True})
    )

    def __init__(self, deed: Action, data: Any = None) -> None:
        super().__init__(data)
        self.fields["notes"].label = deed.notes
        self.fields["notes"].required = deed.notes_needed
        if not deed.notes:
            del self.fields["notes"]
        if deed.choices is None:
            del self.fields["choice"]
        else:
            self.fields["choice"].label = deed.choice
            self.fields["choice"].choices = deed.choices()  # type: ignore[attr-defined]  # it is a ChoiceField


class ActionsAdmin(KeptAdmin):
    """An admin whose rows have deeds. `actions` and `actions_detail` name methods that call `perform` and `perform_one`."""

    def perform(
        self, request: HttpRequest, queryset: QuerySet[Any], deed: Action, do: Callable[..., object]
    ) -> HttpResponse | None:
        """Ask, or when that has been answered, call `do(row, notes)` for each row and tell what came of it. When there is something to
        choose, `do` also gets `choice=`."""
        confirmed = request.method == "POST" and CONFIRMED in request.POST
        form = NotesForm(deed, request.POST if confirmed else None)
        rows = list(queryset)
        if not (confirmed and form.is_valid()):
            return self._ask(request, rows, deed, form)
        notes = form.cleaned_data.get("notes", "")
        chosen = {"choice": form.cleaned_data["choice"]} if deed.choices else {}
        done = [
            row for row in rows if self._try(request, row, deed, lambda row: do(row, notes, **chosen), notes)
        ]
        if done:
            messages.success(request, f"{deed.done}: {_named(done)}.")
        return HttpResponseRedirect(page_of(rows[0], rows[0].pk)) if BACK in request.POST and rows else None

    def perform_one(
        self, request: HttpRequest, object_id: str, action: Callable[..., HttpResponse | None]
    ) -> HttpResponse:
        """The same from the row's own page."""
        found = self.get_object(request, object_id)
        if found is None:
            return HttpResponseRedirect(
                reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")
            )
        asked = action(request, self.model._default_manager.filter(pk=found.pk))
        return asked or HttpResponseRedirect(page_of(found, found.pk))

    def _try(
        self, request: HttpRequest, row: Any, deed: Action, do: Callable[[Any], object], notes: str
    ) -> bool:
        if not may_write(request, row):
            messages.warning(request, f"Skipped {row}: only admins of its tenant may do this.")
            return False
        try:
            do(row)
        except deed.refusals as refusal:
            messages.warning(request, f"Skipped {row}: {refusal}")
            return False
        except DatabaseError as error:
            messages.error(request, f"Not done, try again: {row} ({type(error).__name__}).")
            return False
        self.log_change(request, row, f"{deed.done}. {notes}".strip())
        return True

    def _ask(self, request: HttpRequest, rows: list[Any], deed: Action, form: NotesForm) -> HttpResponse:
        from_page = bool(rows) and (request.method != "POST" or BACK in request.POST)
        list_url = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": deed.title,
            "deed": deed,
            "form": form,
            "rows": rows,
            "from_page": from_page,
            "came_from": page_of(rows[0], rows[0].pk) if from_page else list_url,
            "confirmed": CONFIRMED,
            "back": BACK,
            "checkbox": helpers.ACTION_CHECKBOX_NAME,
            "list_url": list_url,
        }
        return TemplateResponse(request, "admin/deed.html", context)


def _named(rows: list[Any]) -> str:
    names = ", ".join(str(row) for row in rows[:NAMED])
    return f"{names} and {len(rows) - NAMED} more" if len(rows) > NAMED else names
