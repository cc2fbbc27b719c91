"""What may stand in the query string of a list: the view's filters, `search`, `ordering` and the paging.
Nothing else.

A misspelt filter would otherwise return everything, and somebody would act on it. A parameter given twice is
refused as well, unless its filter takes several values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import django_filters
from django.db import models
from django.db.models import QuerySet
from django_filters.filterset import BaseFilterSet
from django_filters.rest_framework import DjangoFilterBackend
from django_filters.widgets import SuffixedMultiWidget
from rest_framework.filters import SearchFilter
from rest_framework.request import Request

from tenants.api import ordering
from tenants.api.faults import Fault, InvalidRequest
from tenants.api.pagination import CURSOR, LIMIT

SEARCH = "search"
FORMAT = "format"
LARGEST = 2**63 - 1
SEARCH_LENGTH = 200  # characters; a search is an unindexed match, so its cost is bounded here


class FlagFilter(django_filters.TypedChoiceFilter):
    """true or false. The library's own filter takes a misspelt one for none, and lists everything."""

    def __init__(self, **options: Any) -> None:
        words = (("true", "true"), ("false", "false"))
        super().__init__(choices=words, coerce=lambda word: word == "true", **options)


class StrictFilterSet(django_filters.FilterSet):
    """What the filters of a view are made of that only names columns."""

    FILTER_DEFAULTS: ClassVar[dict[Any, Any]] = {
        **django_filters.FilterSet.FILTER_DEFAULTS,
        models.BooleanField: {"filter_class": FlagFilter},
    }


class StrictFilterBackend(DjangoFilterBackend):
    """django-filter, and a 400 naming every parameter that is unknown, repeated or malformed.

    A list view declares `filterset_class` or `filterset_fields`, `search_fields`, `ordering_fields`, and in
    `query_parameters` what it reads itself. Single objects are not filtered.
    """

    filterset_base = StrictFilterSet

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: Any) -> QuerySet[Any]:
        if view.kwargs.get(view.lookup_url_kwarg or view.lookup_field) is not None:
            return queryset
        filterset = self.get_filterset(request, queryset, view)
        refuse_unknown(request, view, filterset)
        filtered = super().filter_queryset(request, queryset, view)
        if getattr(view, "search_fields", None):
            filtered = SearchFilter().filter_queryset(request, filtered, view)
        return filtered.order_by(*ordering.ordering_of(request, view))


def refuse_unknown(
    request: Request, view: Any, filterset: BaseFilterSet | None = None, *, several: Iterable[str] = ()
) -> None:
    """Raise `InvalidRequest` naming every parameter that is unknown, repeated or malformed.

    Those named by `several` may be repeated, besides what the filterset says.
    """
    single, repeatable = _names_of(filterset)
    repeatable.update(several)
    single |= {LIMIT, CURSOR, FORMAT, *(getattr(view, "query_parameters", None) or ())}
    if getattr(view, "search_fields", None):
        single.add(SEARCH)
    if ordering.offered_by(view):
        single.add(ordering.PARAMETER)
    if found := list(_faults(request, single, repeatable)):
        raise InvalidRequest(found)


def whole_number(text: str | None, name: str, faults: list[Fault]) -> int | None:
    """A parameter that is a number from 0; what is none is added to `faults`."""
    if text is None:
        return None
    if text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= LARGEST:
        return int(text)
    faults.append((name, "must be a whole number, not below 0"))
    return None


def _faults(request: Request, single: set[str], several: set[str]) -> Iterable[Fault]:
    for name, values in request.query_params.lists():
        if name not in single and name not in several:
            yield name[:100], "is not a parameter of this list"
        elif len(values) > 1 and name in single:
            yield name, "is given more than once"
        elif any("\x00" in value for value in values):
            yield name, "contains a NUL character"
        elif name == SEARCH and len(values[0]) > SEARCH_LENGTH:
            yield name, f"has more than {SEARCH_LENGTH} characters"


def _names_of(filterset: BaseFilterSet | None) -> tuple[set[str], set[str]]:
    """The parameters of a filterset: those with one value, and those that may be repeated."""
    single: set[str] = set()
    several: set[str] = set()
    if filterset is None:
        return single, several
    for name, field in filterset.form.fields.items():
        widget = field.widget
        if isinstance(widget, SuffixedMultiWidget):  # a range has one parameter per end
            single |= {widget.suffixed(name, suffix) for suffix in widget.suffixes}
        elif getattr(widget, "allow_multiple_selected", False):
            several.add(name)
        else:
            single.add(name)
    return single, several
