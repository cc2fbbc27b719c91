"""Validates the query string of a list: only the view's filters, `search`, `ordering` and the paging are allowed.

Otherwise a misspelt filter would return everything, and somebody might act on it. A repeated parameter is
refused as well, unless its filter takes several values.

The filters of a view are computed once per process. A request copies only the filters that it uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, ClassVar

import django_filters
from django import forms
from django.db import models
from django.db.models import QuerySet
from django.http import QueryDict
from django_filters.filterset import filterset_factory
from django_filters.rest_framework import DjangoFilterBackend
from django_filters.utils import translate_validation
from django_filters.widgets import SuffixedMultiWidget
from rest_framework.filters import SearchFilter
from rest_framework.request import Request

from tenants.api import pagination
from tenants.api.pagination import CURSOR, LIMIT
from tenants.api.problems import FieldError, InvalidRequest, extend_path, flatten_errors

SEARCH = "search"
FORMAT = "format"
# A blank search finds everything, as one without words.
CHECKED_ELSEWHERE = {SEARCH, LIMIT, CURSOR, pagination.PARAMETER}
LARGEST = 2**63 - 1
_OFFSET_AFTER_SPACE = re.compile(r"(T\d\d:\d\d\S*) (\d\d:?\d\d)$")
SEARCH_LENGTH = 200  # characters; a search is an unindexed match, so its cost is bounded here


class FlagFilter(django_filters.TypedChoiceFilter):
    """A filter with true or false. The library's own filter ignores a misspelt value, and lists everything."""

    def __init__(self, **options: Any) -> None:
        words = (("true", "true"), ("false", "false"))
        super().__init__(choices=words, coerce=lambda word: word == "true", **options)


class WholeNumberFilter(django_filters.NumberFilter):
    """A filter with a whole number. The library's own filter rounds 1.5."""

    field_class = forms.IntegerField


class _ListField(django_filters.fields.BaseCSVField):
    def clean(self, value: Any) -> Any:
        if value and not all(each.strip() for each in value):
            raise forms.ValidationError("must not contain an empty value")
        return super().clean(value)


class ListFilter(django_filters.BaseInFilter):
    """A filter with one value, or several separated by commas. The library's own filter accepts empty ones between them."""

    base_field_class = _ListField


def restore_plus(moment: str) -> str:
    """Return the time with the + of its offset, which is a space if it is not encoded in a query string."""
    return _OFFSET_AFTER_SPACE.sub(r"\1+\2", moment)


class _MomentField(django_filters.fields.IsoDateTimeField):
    def strptime(self, value: str, format: str) -> Any:
        return super().strptime(restore_plus(value), format)


class MomentFilter(django_filters.IsoDateTimeFilter):
    """A filter with a time, in UTC if it says no offset. The + of an offset may be unencoded."""

    field_class = _MomentField


class StrictFilterSet(django_filters.FilterSet):
    """The filters of a list. For a view that only names columns, a class is generated."""

    FILTER_DEFAULTS: ClassVar[dict[Any, Any]] = {
        **django_filters.FilterSet.FILTER_DEFAULTS,
        models.BooleanField: {"filter_class": FlagFilter},
    }

    base_filters: dict[str, django_filters.Filter]

    def __init__(self, data: Mapping[str, Any] | None = None, *args: Any, **options: Any) -> None:
        # The library copies `base_filters` deeply for each request. Omit unused filters, because they do nothing.
        kind: Any = type(self)
        self.base_filters = {
            name: kind.base_filters[name]
            for name, (single, several) in parameters_of(kind).items()
            if any(parameter in (data or ()) for parameter in single | several)
        }
        super().__init__(data, *args, **options)

    def get_form_class(self) -> Any:
        """Name the values of a filter in its error."""
        form: Any = super().get_form_class()
        for field in form.base_fields.values():
            if isinstance(field, forms.ChoiceField):
                choices: Any = field.choices
                known = ", ".join(str(value) for value, _ in choices if value != "")
                field.error_messages["invalid_choice"] = f"must be one of {known.replace('%', '%%')}"
        return form


class StrictFilterBackend(DjangoFilterBackend):
    """django-filter, and a 400 that names every unknown, repeated or malformed parameter.

    A list view declares `filterset_class` or `filterset_fields`, `search_fields`, `ordering_fields`, and in
    `query_parameters` the parameters that it reads itself. Single objects are not filtered.
    """

    filterset_base = StrictFilterSet

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: Any) -> QuerySet[Any]:
        if view.kwargs.get(view.lookup_url_kwarg or view.lookup_field) is not None:
            return queryset
        filterset = self.get_filterset(request, queryset, view)
        errors = parameter_errors(request, view, self.get_filterset_class(view, queryset))
        if filterset is not None and not filterset.is_valid():
            errors += flatten_errors(translate_validation(filterset.errors).detail)
        errors += view.paginator.errors_of(request, view)
        refuse(errors)
        filtered = queryset if filterset is None else filterset.qs
        if getattr(view, "search_fields", None):
            filtered = SearchFilter().filter_queryset(request, filtered, view)
        return filtered.order_by(*pagination.ordering_of(request, view))

    def get_filterset_class(self, view: Any, queryset: QuerySet[Any] | None = None) -> Any:
        if getattr(view, "filterset_class", None) or queryset is None:
            return super().get_filterset_class(view, queryset)
        model: Any = queryset.model
        return _filterset_over(model, tuple(getattr(view, "filterset_fields", None) or ()))


def parameter_errors(
    request: Request, view: Any, filterset: Any = None, *, several: Iterable[str] = ()
) -> list[FieldError]:
    """Return every unknown, repeated or blank parameter. `filterset` is the class of the list's filters.

    The caller adds the errors in the values, and raises all together. The parameters in `several` may be repeated, in addition to those
    of the filterset.
    """
    offered = parameters_of(filterset).values() if filterset else ()
    repeatable = set(several).union(*(repeated for _, repeated in offered))
    single = set[str]().union(*(once for once, _ in offered))
    single |= {FORMAT, *(getattr(view, "query_parameters", None) or ())}
    if view.pagination_class is not None:
        single |= {LIMIT, CURSOR}
    if getattr(view, "search_fields", None):
        single.add(SEARCH)
    if pagination.orderings_of(view):
        single.add(pagination.PARAMETER)
    return list(_errors(request, single, repeatable))


def refuse(errors: Iterable[FieldError]) -> None:
    """Raise `InvalidRequest` with the first error of each parameter, if there are any."""
    first: dict[str, str] = {}
    for path, message in errors:
        first.setdefault(path, message)
    if first:
        raise InvalidRequest(first.items())


def filter_by_body(
    filterset: Any, rows: QuerySet[Any], conditions: Mapping[str, Any], request: Request
) -> QuerySet[Any]:
    """Filter rows as a list does, by the validated member `filter` of a body. Raises `InvalidRequest`."""
    data = QueryDict(mutable=True)
    data.update({name: _as_text(value) for name, value in conditions.items()})
    filters = filterset(data=data, queryset=rows, request=request)
    if not filters.is_valid():
        raise InvalidRequest(
            (extend_path("filter", name), str(text))
            for name, texts in filters.errors.items()
            for text in texts
        )
    filtered: QuerySet[Any] = filters.qs
    return filtered


def _as_text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value.isoformat() if isinstance(value, datetime) else str(value)


def parse_whole_number(
    text: str | None, name: str, errors: list[FieldError], *, least: int = 0
) -> int | None:
    """Parse a parameter as a number of at least `least`. Problems are added to `errors`."""
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= LARGEST):
        errors.append((name, "must be a whole number, not below 0"))
    elif int(text) < least:
        errors.append((name, f"must be at least {least}"))
    else:
        return int(text)
    return None


def _errors(request: Request, single: set[str], several: set[str]) -> Iterable[FieldError]:
    for name, values in request.query_params.lists():
        if name not in single and name not in several:
            yield name[:100], "is not a parameter of this list"
        elif len(values) > 1 and name in single:
            yield name, "is given more than once"
        elif any("\x00" in value for value in values):
            yield name, "contains a NUL character"
        elif name not in CHECKED_ELSEWHERE and not all(value.strip() for value in values):
            # A filter without a value would be ignored, and the list return everything.
            yield name, "must not be blank"
        elif name == SEARCH and len(values[0]) > SEARCH_LENGTH:
            yield name, f"has more than {SEARCH_LENGTH} characters"


@cache
def parameters_of(kind: Any) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """Return the parameters of each filter: those with one value, and those that may be repeated."""
    return {name: _parameters(name, each.field.widget) for name, each in kind.base_filters.items()}


def _parameters(name: str, widget: Any) -> tuple[frozenset[str], frozenset[str]]:
    if isinstance(widget, SuffixedMultiWidget):  # a range has one parameter per end
        return frozenset(widget.suffixed(name, suffix) for suffix in widget.suffixes), frozenset()
    if getattr(widget, "allow_multiple_selected", False):
        return frozenset(), frozenset({name})
    return frozenset({name}), frozenset()


@cache
def _filterset_over(model: Any, columns: tuple[str, ...]) -> Any:
    """Return the filters of a view that only names columns of its model."""
    return filterset_factory(model, filterset=StrictFilterSet, fields=columns) if columns else None
