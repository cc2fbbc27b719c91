"""What is wrong with a request, as a flat list of places and messages: `steps[2].depends_on[0]`: "unknown
step".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.core.exceptions import ValidationError as DjangoValidationError
from rest_framework import status
from rest_framework.exceptions import APIException
from rest_framework.settings import api_settings

Fault = tuple[str, str]  # path, message


class InvalidRequest(APIException):
    """Something in the request is not as it must be; every fault has its path ("" is the whole body)."""

    status_code = status.HTTP_400_BAD_REQUEST
    default_code = "validation_failed"

    def __init__(self, faults: Iterable[Fault], *, code: str | None = None) -> None:
        self.faults = list(faults)
        super().__init__(
            "; ".join(f"{path}: {message}" if path else message for path, message in self.faults), code
        )


def flatten(detail: Any) -> list[Fault]:
    """All faults in the nested detail of a REST framework `ValidationError`, in the order of the fields."""
    return list(_walk("", detail))


def of_django(error: DjangoValidationError) -> list[Fault]:
    """All faults of a model's or form's `ValidationError`."""
    if hasattr(error, "error_dict"):
        return flatten(
            {"" if name == "__all__" else name: texts for name, texts in error.message_dict.items()}
        )
    return [("", message) for message in error.messages]


def extend(path: str, key: str | int) -> str:
    """The path of a member or element below `path`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if key in ("", api_settings.NON_FIELD_ERRORS_KEY):
        return path
    if key.isidentifier() and key.isascii() and len(key) <= 40:  # as `tenants.strict_json` writes paths
        return f"{path}.{key}" if path else key
    return f"{path}[{json.dumps(key[:40])}]"


def as_members(faults: Iterable[Fault]) -> list[dict[str, str]]:
    """The faults as a problem's `errors`."""
    return [{"path": path, "message": message} for path, message in faults]


def _walk(path: str, detail: Any) -> Iterator[Fault]:
    if isinstance(detail, Mapping):
        for key, inner in detail.items():
            yield from _walk(extend(path, key), inner)
    elif isinstance(detail, Sequence) and not isinstance(detail, str):
        yield from _walk_list(path, detail)
    else:
        yield path, str(detail)


def _walk_list(path: str, details: Sequence[Any]) -> Iterator[Fault]:
    # A list holds either messages about this place, or one entry per element with {} for those in order.
    for index, inner in enumerate(details):
        if isinstance(inner, str):
            yield path, str(inner)
        else:
            yield from _walk(extend(path, index), inner)
