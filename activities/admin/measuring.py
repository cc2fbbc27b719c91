"""What the platform counts and what is wrong with it, for superusers. Whose work it concerns is told to these tenants, and not here."""

from __future__ import annotations

from django.contrib import admin
from unfold.decorators import display

from activities.models import Condition, Counter, CountingMark
from tenants.admin.bases import RecordAdmin


@admin.register(Condition)
class ConditionAdmin(RecordAdmin):
    list_display = ("kind", "since", "facts", "concerned")
    list_filter = ("kind",)
    fields = ("kind", "since", "facts", "over", "concerned")
    readonly_fields = fields

    @display(description="Tenants that were told")
    def concerned(self, condition: Condition) -> int:
        return len(condition.tenants)


@admin.register(Counter)
class CounterAdmin(RecordAdmin):
    list_display = ("name", "role", "status", "le", "count", "total")
    list_filter = ("name", "status")
    search_fields = ("role",)
    fields = ("name", "role", "status", "le", "count", "total")
    readonly_fields = fields


@admin.register(CountingMark)
class CountingMarkAdmin(RecordAdmin):
    list_display = ("counted", "seen", "at", "complete_at")
    fields = ("counted", "seen", "barrier", "at", "noted_at", "complete_at")
    readonly_fields = fields
