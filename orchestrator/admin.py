"""URLs of the admin, and its pages for users and for Celery's tables.

These pages are the packages' own admins in our theme, for superusers only. Importing this module loads the admins of all apps, so it is
only imported when the admin is used.
"""

from __future__ import annotations

import json
from typing import Any

from celery.schedules import ParseException
from django import forms
from django.contrib import admin, messages
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import URLPattern, URLResolver, path
from django_celery_beat import admin as beat
from django_celery_beat.models import (
    ClockedSchedule,
    CrontabSchedule,
    IntervalSchedule,
    PeriodicTask,
    SolarSchedule,
)
from django_celery_results import admin as results
from django_celery_results.models import GroupResult, TaskResult
from kombu.exceptions import OperationalError
from unfold.admin import ModelAdmin, TabularInline
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from agents.admin.platform import providers_page
from orchestrator.beat import TICKS, error_of, error_of_interval, is_tick
from tenants.admin import audit
from tenants.admin.bases import NOTHING, RecordAdmin, SuperusersOnly
from tenants.models import Membership

admin.autodiscover()  # registers the packages' own admins, which are replaced below

for _model in (
    User, Group, PeriodicTask, IntervalSchedule, CrontabSchedule, ClockedSchedule, SolarSchedule, TaskResult, GroupResult,
):  # fmt: skip
    admin.site.unregister(_model)


class MembershipInline(SuperusersOnly, TabularInline):
    """The user's memberships in tenants."""

    model = Membership
    fields = ("tenant", "role")
    autocomplete_fields = ("tenant",)
    extra = 0


@admin.register(User)
class UserAdmin(SuperusersOnly, DjangoUserAdmin, ModelAdmin):
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    inlines = (MembershipInline,)

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        # Histories and memberships of tenants refer to users; make them inactive instead.
        return False

    def get_inlines(self, request: Any, obj: Any) -> Any:
        return self.inlines if obj else ()


@admin.register(Group)
class GroupAdmin(SuperusersOnly, DjangoGroupAdmin, ModelAdmin):
    """Not used, because roles belong to memberships. It exists because Django's users have groups."""


class TaskSelect(UnfoldAdminSelectWidget, beat.TaskSelectWidget):
    """The registered tasks, in the theme's look."""


class PeriodicTaskForm(beat.PeriodicTaskForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["task"].widget = UnfoldAdminTextInputWidget()
        self.fields["regtask"].widget = TaskSelect()

    def _clean_json(self, field: str) -> Any:
        try:
            return super()._clean_json(field)
        except RecursionError as error:
            raise ValidationError("This JSON is nested too deeply.") from error

    def clean_headers(self) -> Any:
        text = self._clean_json("headers")
        if not isinstance(json.loads(text), dict):
            raise ValidationError("Enter an object.")
        return text

    def clean(self) -> dict[str, Any]:
        """Refuse tasks that beat would not send, because such a row would look as if it ran."""
        if "task" in self.errors:
            return self.cleaned_data  # the package's own check needs a valid name
        values = super().clean() or {}
        if not is_tick(values.get("task") or "", values.get("args"), values.get("kwargs")):
            self.add_error(
                "task",
                f"Beat sends only the system's own tasks, each with its own arguments: {', '.join(sorted(TICKS))}.",
            )
        return values

    def _post_clean(self) -> None:
        """Refuse times that cannot be computed, for the same reason."""
        super()._post_clean()
        if not self.errors and (reason := error_of(self.instance)):
            self.add_error(None, f"Beat cannot compute when to send this: {reason}")


@admin.register(PeriodicTask)
class PeriodicTaskAdmin(SuperusersOnly, beat.PeriodicTaskAdmin, ModelAdmin):
    form = PeriodicTaskForm
    date_hierarchy = None  # counts by date on every page

    @admin.action(description="Send now")
    def run_tasks(self, request: HttpRequest, queryset: QuerySet[PeriodicTask]) -> None:
        """Send only ticks, where the package would send any task with any arguments."""
        ticks = [row for row in queryset if is_tick(row.task, row.args, row.kwargs)]
        for row in queryset:
            if row not in ticks:
                messages.warning(request, f"Not sent: {row} is not one of the system's own tasks.")
        try:
            super().run_tasks(request, queryset.filter(pk__in=[row.pk for row in ticks]))
        except OperationalError:
            messages.error(request, "Not sent: the broker does not answer. Please retry.")


class IntervalForm(forms.ModelForm):
    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        if not self.errors and (reason := error_of_interval(IntervalSchedule(**values))):
            self.add_error("every", f"{reason.capitalize()}.")
        return values


@admin.register(IntervalSchedule)
class IntervalScheduleAdmin(SuperusersOnly, beat.IntervalScheduleAdmin, ModelAdmin):
    form = IntervalForm


@admin.register(CrontabSchedule)
class CrontabScheduleAdmin(SuperusersOnly, beat.CrontabScheduleAdmin, ModelAdmin):
    @admin.display(description="In words")
    def human_readable(self, schedule: CrontabSchedule) -> str:
        """Return the schedule in words, or nothing while its form has errors."""
        try:
            return str(schedule.human_readable)
        except ParseException:
            return NOTHING


@admin.register(ClockedSchedule)
class ClockedScheduleAdmin(SuperusersOnly, beat.ClockedScheduleAdmin, ModelAdmin):
    pass


@admin.register(SolarSchedule)
class SolarScheduleAdmin(SuperusersOnly, ModelAdmin):
    pass


@admin.register(TaskResult)
class TaskResultAdmin(RecordAdmin, results.TaskResultAdmin):  # type: ignore[misc]  # the theme has no types
    date_hierarchy = None  # type: ignore[assignment]  # it would count by date on every page


@admin.register(GroupResult)
class GroupResultAdmin(RecordAdmin, results.GroupResultAdmin):  # type: ignore[misc]  # the theme has no types
    date_hierarchy = None  # type: ignore[assignment]  # it would count by date on every page


app_name = "admin"
urlpatterns: list[URLPattern | URLResolver] = [
    path("break-glass/", admin.site.admin_view(audit.break_glass_page), name="break-glass"),
    path("providers/", admin.site.admin_view(providers_page), name="model-providers"),
    *admin.site.get_urls(),
]
