"""Strict serializers for bodies of requests, with the types of JSON, where an unknown key is an error; and fast ones for answers.

REST framework's own fields convert "5" to 5 and 1 to true, and ignore unknown keys; then a misspelt
`max_atempts` would be answered with success. An optional member that is null counts as omitted.

Objects of answers are declared once, for the answer and for the OpenAPI schema. Their values are not converted, because the renderer
supports times, ids and decimals. REST framework's own serializers are slow because they convert each value twice and copy every field for
every answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

import orjson
from django.utils.dateparse import parse_datetime
from drf_spectacular.drainage import set_override
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.settings import api_settings

from tenants.money import without_trailing_zeros
from tenants.plain_names import LONGEST_NAME, error_of_name
from tenants.wire_json import dumps, whole_number

OPTIONAL: Any = {"required": False, "allow_null": True}

Body = TypeVar("Body", bound="StrictSerializer")


class StrictSerializer(serializers.Serializer[Any]):
    """An object of a request. `validated_data` contains its members, without nulls."""

    default_error_messages = {"invalid": "must be an object"}

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        errors: dict[str, Any] = {}
        values: dict[str, Any] = {}
        members = self._without_nulls(data)
        try:
            values = super().to_internal_value(members)
        except ValidationError as error:
            errors.update(_by_key(error.detail))
            if isinstance(data, Mapping):
                values = self._valid_members(members, errors)
        values = {name: value for name, value in values.items() if value is not None}
        if isinstance(data, Mapping):
            known = self.fields
            errors = {**self.errors_of_combination(values, errors), **errors}
            errors.update({key: [self._why_refused(key)] for key in data if key not in known})
        if errors:
            raise ValidationError(errors)
        return values

    def errors_of_combination(self, attrs: Mapping[str, Any], invalid: Container[str]) -> dict[str, Any]:
        """Return errors of members that are valid alone, but not together. `attrs` lacks those whose names are in `invalid`."""
        return {}

    def _why_refused(self, key: str) -> str:
        is_shown = self.root is self and key in self.context.get("shown", ())
        return (
            "cannot be changed here: omit it, or send its present value"
            if is_shown
            else "is not a member of this object"
        )

    def _valid_members(self, data: Any, errors: Mapping[str, Any]) -> dict[str, Any]:
        rest = {name: value for name, value in data.items() if name in self.fields and name not in errors}
        root = self.root  # of which fields ask whether they may be absent
        was_partial, root.partial = root.partial, True  # because required members may be among the errors
        try:
            return super().to_internal_value(rest)
        finally:
            root.partial = was_partial

    def _without_nulls(self, data: Any) -> Any:
        """Remove null members that are optional, so that their validators are not called."""
        if not isinstance(data, Mapping):
            return data
        optional = {name for name, field in self.fields.items() if field.allow_null and not field.required}
        return {name: value for name, value in data.items() if value is not None or name not in optional}


class EmptySerializer(StrictSerializer):
    """A body without members, or none at all."""


def read(kind: type[Body], data: Any, **context: Any) -> dict[str, Any]:
    """Validate the body as this kind of object. Raises REST framework's `ValidationError` with every error."""
    body = kind(data=data, context=context)
    body.is_valid(raise_exception=True)
    return body.validated_data


def read_change(
    kind: type[Body],
    data: Any,
    present: Callable[[], Mapping[str, Any]],
    volatile: Container[str] = (),
    **context: Any,
) -> dict[str, Any]:
    """Like `read`, for the body of a PUT or PATCH, which may also contain what a GET has returned: see `without_repeated`."""
    data, shown = without_repeated(data, kind._declared_fields, present, volatile)
    return read(kind, data, shown=shown, **context)


def without_repeated(
    data: Any, names: Container[str], present: Callable[[], Mapping[str, Any]], volatile: Container[str] = ()
) -> tuple[Any, Container[str]]:
    """Return the body without members that a GET returns and no change sets, if they have their present values, and the names of all
    members that a GET returns. So a client may read an object, change a member, and send all of it.

    `names`: the members that can be changed. `present` returns the object. `volatile`: members that change by themselves, which may be old.
    """
    if not isinstance(data, Mapping) or all(name in names for name in data):
        return data, ()
    shown = orjson.loads(dumps(present()))
    kept = {
        name: value
        for name, value in data.items()
        if name in names or name not in shown or (name not in volatile and value != shown[name])
    }
    return kept, shown


class Text(serializers.CharField):
    """Text, with the spaces around it left out unless `trim_whitespace=False`.

    Trimmed text of at most `LONGEST_NAME` characters is a name or a key, and held to the rules of `tenants.plain_names`.
    """

    default_error_messages = {"invalid": "must be text", "blank": "must not be blank"}

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        text = super().to_internal_value(data)
        if self.trim_whitespace and self.max_length is not None and self.max_length <= LONGEST_NAME:
            error = error_of_name(text)
            if error:
                raise ValidationError(error)
        return text


class Whole(serializers.IntegerField):
    """A whole number. 5.0 is one, "5" and true are not."""

    default_error_messages = {"invalid": "must be a whole number"}

    def to_internal_value(self, data: Any) -> int:
        number = whole_number(data)
        if number is None:
            self.fail("invalid")
        return number


class Number(serializers.FloatField):
    default_error_messages = {"invalid": "must be a number"}

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float):
            self.fail("invalid")
        return float(data)


_DECIMAL = re.compile(r"[0-9.eE+-]+")


@extend_schema_field({"oneOf": [{"type": "number"}, {"type": "string", "format": "decimal"}]})
class Amount(serializers.Field[Any, Any, Any, Any]):
    """An exact decimal from 0: a JSON number, or the same as text for those whose numbers lose cents. At most twelve places."""

    default_error_messages = {
        "invalid": "must be a number, such as 12.50",
        "range": "must be from 0 to {most}",
        "places": "must have at most 12 decimal places",
    }

    def __init__(self, *, most: Decimal = Decimal(10) ** 15, **options: Any) -> None:
        super().__init__(**options)
        self.most = most

    def to_internal_value(self, data: Any) -> Decimal:
        if isinstance(data, bool) or not isinstance(data, int | float | str):
            self.fail("invalid")
        text = str(data)
        try:
            amount = Decimal(text)
        except InvalidOperation:
            self.fail("invalid")
        # Decimal() also accepts spaces, underscores and the digits of other scripts.
        if not amount.is_finite() or not _DECIMAL.fullmatch(text):
            self.fail("invalid")
        if not 0 <= amount <= self.most:
            self.fail("range", most=f"{self.most:f}")
        if amount != amount.quantize(Decimal("1e-12")):
            self.fail("places")
        return amount

    def to_representation(self, value: Any) -> Any:
        return value


class Flag(serializers.BooleanField):
    default_error_messages = {"invalid": "must be true or false"}

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid")
        return data


class OneOf(serializers.ChoiceField):
    default_error_messages = {"invalid_choice": "must be one of {known}"}

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, str) or data not in self.choices:
            self.fail("invalid_choice", known=", ".join(map(str, self.choices)))
        return data


class Identifier(serializers.UUIDField):
    default_error_messages = {"invalid": "must be a UUID"}

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class Moment(serializers.DateTimeField):
    """A time with its offset: without one, nobody knows which moment is meant."""

    default_error_messages = {
        "invalid": "must be a time such as 2026-05-01T09:30:00Z",
        "naive": "must say its offset from UTC, as in 2026-05-01T09:30:00Z",
    }

    def to_internal_value(self, value: Any) -> datetime:
        parsed = None
        try:
            parsed = parse_datetime(value) if isinstance(value, str) else None
            moment = parsed.astimezone(UTC) if parsed is not None and parsed.tzinfo is not None else None
        except (ValueError, OverflowError):
            moment = None
        if moment is None:
            self.fail("invalid" if parsed is None or parsed.tzinfo is not None else "naive")
        return moment


@extend_schema_field({"type": ["object", "array", "string", "number", "boolean"], "items": {}})
class Json(serializers.JSONField):
    """Any JSON value."""


class Member(serializers.DictField):
    """Free JSON data: an object."""

    default_error_messages = {"not_a_dict": "must be an object"}


def _by_key(detail: Any) -> Mapping[str, Any]:
    return detail if isinstance(detail, Mapping) else {api_settings.NON_FIELD_ERRORS_KEY: detail}


class ResponseSerializer(serializers.Serializer[Any]):
    """An object of an answer. Plain fields are read as attributes, `Computed` fields and `SerializerMethodField`s are called."""

    def to_representation(self, instance: Any) -> dict[str, Any]:
        return {
            name: getattr(self, reader)(instance) if isinstance(reader, str) else reader(instance)
            for name, reader in _readers(type(self))
        }


class Computed(serializers.Field[Any, Any, Any, Any]):
    """A member that `compute` derives from the row. `kind` is its type, or its schema as a dictionary."""

    def __init__(
        self, kind: Any, compute: Callable[[Any], Any], *, read_only: bool = True, **options: Any
    ) -> None:
        super().__init__(read_only=read_only, **options)
        self.compute = compute
        set_override(self, "field", kind)


class AmountField(serializers.Field[Any, Any, Any, Any]):
    """An exact decimal, which is sent as text, because a float would lose cents; without trailing zeros: 0.3 and not 0.300000000000."""

    def __init__(self, **options: Any) -> None:
        super().__init__(read_only=True, **options)
        set_override(self, "field", {"type": "string", "format": "decimal"})


@cache
def _readers(kind: type[ResponseSerializer]) -> tuple[tuple[str, str | Callable[[Any], Any]], ...]:
    """Return how to read each member of a kind of object: the name of a method, or a function."""
    return tuple((name, _reader(name, field)) for name, field in kind._declared_fields.items())


def _reader(name: str, field: serializers.Field[Any, Any, Any, Any]) -> str | Callable[[Any], Any]:
    if isinstance(field, Computed):
        return field.compute
    if isinstance(field, serializers.SerializerMethodField):
        return field.method_name or f"get_{name}"
    read = attrgetter(field.source or name)
    if not isinstance(field, AmountField):
        return read
    return lambda row: None if (amount := read(row)) is None else without_trailing_zeros(amount)
