"""Actions of people on rows, from a list or by a button on a row's page. A page asks for confirmation, and messages report each row.

A button is a link, and a link must not change anything: it leads to a page that explains the action and lists the rows. Only the form on
that page acts. Rows are processed one by one, each in its own transaction. A row that is refused is skipped, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.db import DatabaseError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.decorators import action as unfold_action
from unfold.enums import ActionVariant
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget

from tenants.admin.bases import UndeletableAdmin, page_of
from tenants.admin.permissions import may_write
from tenants.exceptions import Refusal
from tenants.wording import name_some

CONFIRMED, BACK = "confirmed", "back"  # fields of the confirmation page
NAMED = 20  # rows that a message names one by one


@dataclass(frozen=True, slots=True)
class Action:
    """An action on rows: in the list, and as a button on each row's page. A `Refusal`, or another error of `refusals`, skips a row, with
    its text as the reason."""

    path: str  # of the page behind the button; the actions of the list and of the button are named after it
    done: str
    explanation: str
    title: str = ""  # if not the path in words
    notes: str = ""  # the label of the notes; empty: no notes
    notes_needed: bool = False
    danger: bool = False
    choice: str = ""  # the label of the choice; empty: no choice
    # Returns Django's choices for these rows. If it returns none, there is nothing to choose.
    choices: Callable[[Sequence[Any]], list[tuple[str, Any]]] | None = None
    # Acts on one row. Its arguments are the request, the row and the notes, and if there is a choice, the selected one as `choice=`.
    do: Callable[..., object] = field(kw_only=True)
    counted: Callable[[QuerySet[Any]], str] | None = None  # adds to the explanation for these rows
    # Whether the page of this row has the button now. None: always. The page behind a hidden button checks again, and refuses.
    offered: Callable[[Any], bool] | None = None
    button: str = ""  # its text, if not the title
    icon: str | None = None
    variant: ActionVariant = ActionVariant.DEFAULT
    permission: str = "view"
    refusals: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        if not self.title:
            object.__setattr__(self, "title", self.path.replace("-", " ").capitalize())

    @property
    def button_name(self) -> str:
        """Return the name of the button in the admin and of its address."""
        return self.path.replace("-", "_")

    @property
    def list_name(self) -> str:
        return f"{self.button_name}_selected"


class NotesForm(forms.Form):
    choice = forms.ChoiceField(widget=UnfoldAdminSelectWidget())
    notes = forms.CharField(
        max_length=10_000, widget=UnfoldAdminTextareaWidget(attrs={"rows": 4, "autofocus": True})
    )

    def __init__(self, action: Action, rows: Sequence[Any], data: Any = None) -> None:
        super().__init__(data)
        self.fields["notes"].label = action.notes
        self.fields["notes"].required = action.notes_needed
        if not action.notes:
            del self.fields["notes"]
        choices = action.choices(rows) if action.choices else []
        if not choices:
            del self.fields["choice"]
        else:
            self.fields["choice"].label = action.choice
            self.fields["choice"].choices = choices  # type: ignore[attr-defined]  # it is a ChoiceField


class ActionsAdmin(UndeletableAdmin):
    """An admin with `row_actions`, which are in the list and on the row's page, after those in `actions` and `actions_detail`."""

    row_actions: ClassVar[tuple[Action, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for each in vars(cls).get("row_actions", ()):
            setattr(cls, each.list_name, _list_action(each))
            cls.actions = _with(cls.actions, each.list_name)
            setattr(cls, each.button_name, _button(each))
            cls.actions_detail = _with(cls.actions_detail, each.button_name)

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        buttons: list[Any] = super().get_actions_detail(request, object_id)
        offered = {each.path: each.offered for each in self.row_actions if each.offered is not None}
        row = self.get_object(request, object_id) if offered else None
        return [
            button
            for button in buttons
            if button.path not in offered or (row is not None and offered[button.path](row))
        ]

    def perform(self, request: HttpRequest, queryset: QuerySet[Any], action: Action) -> HttpResponse | None:
        """Render the form. When it was submitted, run the action on each row and report the results."""
        if action.counted is not None:
            action = replace(action, explanation=f"{action.explanation} {action.counted(queryset)}")
        confirmed = request.method == "POST" and CONFIRMED in request.POST
        rows = list(queryset)
        form = NotesForm(action, rows, request.POST if confirmed else None)
        if not (confirmed and form.is_valid()):
            return self._confirmation_page(request, rows, action, form)
        notes = form.cleaned_data.get("notes", "")
        choice = {"choice": form.cleaned_data["choice"]} if "choice" in form.fields else {}
        done = [
            row
            for row in rows
            if self.try_on(
                request, row, lambda row: action.do(request, row, notes, **choice),
                done=f"{action.done}. {notes}".strip(), refusals=action.refusals,
            )
        ]  # fmt: skip
        if done:
            messages.success(request, f"{action.done}: {name_some(done, NAMED)}.")
        return HttpResponseRedirect(page_of(rows[0], rows[0].pk)) if BACK in request.POST and rows else None

    def perform_one(
        self, request: HttpRequest, object_id: str, action: Callable[..., HttpResponse | None]
    ) -> HttpResponse:
        """Perform the action from the row's page."""
        row = self.get_object(request, object_id)
        if row is None:
            return HttpResponseRedirect(
                reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")
            )
        page = action(request, self.model._default_manager.filter(pk=row.pk))
        return page or HttpResponseRedirect(page_of(row, row.pk))

    def try_on(
        self,
        request: HttpRequest,
        row: Any,
        do: Callable[[Any], object],
        *,
        done: str,
        refusals: tuple[type[Exception], ...] = (),
    ) -> bool:
        """Do it to a row that the request may change, with `done` in the row's history. Otherwise tell why not, and return False."""
        if not may_write(request, row):
            messages.warning(request, f"Skipped {row}: only admins of its tenant may do this.")
            return False
        reasons: tuple[type[Exception], ...] = (Refusal, *refusals)
        try:
            do(row)
        except reasons as refusal:
            messages.warning(request, f"Skipped {row}: {refusal}")
            return False
        except DatabaseError as error:
            messages.error(request, f"Failed, please retry: {row} ({type(error).__name__}).")
            return False
        self.log_change(request, row, done)
        return True

    def _confirmation_page(
        self, request: HttpRequest, rows: list[Any], action: Action, form: NotesForm
    ) -> HttpResponse:
        from_page = bool(rows) and (request.method != "POST" or BACK in request.POST)
        list_url = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": action.title,
            "row_action": action,
            "form": form,
            "rows": rows,
            "from_page": from_page,
            "came_from": page_of(rows[0], rows[0].pk) if from_page else list_url,
            "confirmed": CONFIRMED,
            "back": BACK,
            "checkbox": helpers.ACTION_CHECKBOX_NAME,
            "list_url": list_url,
        }
        return TemplateResponse(request, "admin/row_action.html", context)


def _with(names: Any, name: str) -> tuple[str, ...]:
    """Return the names with this one added at the end, unless it is among them."""
    known = tuple(names or ())
    return known if name in known else (*known, name)


def _list_action(action: Action) -> Any:
    @admin.action(description=action.title, permissions=[action.permission])
    def act(self: ActionsAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self.perform(request, queryset, action)

    return act


def _button(action: Action) -> Any:
    def act(self: ActionsAdmin, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.perform_one(request, object_id, getattr(self, action.list_name))

    act.__name__ = action.button_name  # the theme finds the button by this name
    decorate = unfold_action(
        description=action.button or action.title,
        url_path=action.path,
        icon=action.icon,
        permissions=[action.permission],
        variant=action.variant,
    )
    return decorate(act)
