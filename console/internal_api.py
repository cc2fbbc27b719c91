"""Calls the API's views from a page, in the same process, so that the same rules apply and the audit trail has one entry.

The page has authenticated the person and checked its form against forgery, so the view receives the principal and reads neither session nor
token. Not inside a transaction, because the view opens its own.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode

from django import forms
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest
from django.urls import ResolverMatch, resolve
from django.utils.text import capfirst
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from rest_framework.utils.encoders import JSONEncoder

from tenants import strict_json
from tenants.api.idempotency import REPLAYED
from tenants.principals import Principal

if TYPE_CHECKING:
    from console.page import PageContext

API = "/api/v1"
#: The form field with an idempotency key, which `{% once %}` renders: the button acts once, however often it is pressed.
ONCE = "once"
_CALLER = "console_asker"
_KEY = re.compile(r"[\w-]{16,64}", re.ASCII)
#: The only values of the page's request that the view receives: its origin.
_FORWARDED = (
    "REMOTE_ADDR",
    "HTTP_X_FORWARDED_FOR",
    "SERVER_NAME",
    "SERVER_PORT",
    "SERVER_PROTOCOL",
    "HTTP_HOST",
    "wsgi.url_scheme",
)


class _PageAuthentication(BaseAuthentication):
    """Authenticates the principal of the page."""

    def authenticate(self, request: Request) -> tuple[Principal, None] | None:
        who = getattr(request._request, _CALLER, None)
        return None if who is None else (who, None)


@dataclass(frozen=True, slots=True)
class Reply:
    """The response of the view. `errors` are messages by the path in the body; `repeated`: an earlier call had the same key."""

    status: int
    data: Any = None
    errors: Mapping[str, str] = field(default_factory=dict)
    repeated: bool = False

    @property
    def ok(self) -> bool:
        return self.status < HTTPStatus.BAD_REQUEST

    @property
    def reason(self) -> str:
        """The reason of a refusal, as a sentence."""
        detail = self.data.get("detail") if isinstance(self.data, Mapping) else ""
        return str(detail or HTTPStatus(self.status).phrase)


def call_api(
    request: HttpRequest,
    who: Principal,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    query: Mapping[str, Any] | None = None,
    version: int | None = None,
) -> Reply:
    """Call the API as this person. `path` starts after `/api/v1`. With a `version`, the call fails if the object has another one.

    A form with `{% once %}` takes effect once; when it is sent again, the first response is repeated. Raises `Http404` if no view has the
    path. Every other refusal is a reply.
    """
    inner = _request(request, method, f"{API}{path}", body, query or {}, version)
    match = resolve(inner.path)
    inner.resolver_match = match
    setattr(inner, _CALLER, who)
    response = _view(match, method)(inner, *match.args, **match.kwargs)
    repeated = REPLAYED in response
    data = json.loads(response.content) if repeated else getattr(response, "data", None)
    errors = _errors(data) if response.status_code >= HTTPStatus.BAD_REQUEST else {}
    return Reply(response.status_code, data, errors, repeated)


def _request(
    outer: HttpRequest,
    method: str,
    path: str,
    body: Mapping[str, Any] | None,
    query: Mapping[str, Any],
    version: int | None,
) -> WSGIRequest:
    content = b"" if body is None else json.dumps(body, cls=JSONEncoder).encode()
    environ = {name: outer.META[name] for name in _FORWARDED if name in outer.META}
    environ |= {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": path,
        "QUERY_STRING": urlencode(query, doseq=True),
        "HTTP_ACCEPT": "application/json",
        "CONTENT_LENGTH": str(len(content)),
        "wsgi.input": io.BytesIO(content),
    }
    if body is not None:
        environ["CONTENT_TYPE"] = "application/json"
    if version is not None:
        environ["HTTP_IF_MATCH"] = f'"{version}"'
    if method == "POST" and _KEY.fullmatch(key := outer.POST.get(ONCE, "")):
        environ["HTTP_IDEMPOTENCY_KEY"] = key
    inner = WSGIRequest(environ)
    inner.request_id = getattr(outer, "request_id", None)  # type: ignore[attr-defined]  # as the middleware does
    return inner


def _view(match: ResolverMatch, method: str) -> Any:
    """Return the view with its own permissions but another authentication."""
    view: Any = match.func
    kind, initkwargs = view.cls, {**view.initkwargs, "authentication_classes": (_PageAuthentication,)}
    if method == "GET":
        # A page that reads several objects counts as one request of the person, not as several.
        initkwargs["throttle_classes"] = ()
    actions = getattr(view, "actions", None)
    return kind.as_view(**initkwargs) if actions is None else kind.as_view(actions, **initkwargs)


def _errors(data: Any) -> dict[str, str]:
    errors = data.get("errors", ()) if isinstance(data, Mapping) else ()
    return {str(error["path"]): str(error["message"]) for error in errors}


# Forms whose fields are members of the API. They keep their input, and display each error of the API at its field.


LONGEST_JSON = 100_000  # bytes of one field


class ApiForm(forms.Form):
    """Base of these forms. Empty fields are omitted from the body, so the API's defaults apply. `status` is that of a refusal."""

    status = 400
    #: By field: the values of the field `chooser`, separated by spaces, for which a style sheet displays it. Only the part of a value
    #: before a colon counts.
    fits: ClassVar[Mapping[str, str]] = {}
    chooser: ClassVar[str] = ""

    @property
    def fitting(self) -> list[tuple[forms.BoundField, str]]:
        """The visible fields, each with its values of `fits`."""
        return [(field, self.fits.get(field.name, "")) for field in self.visible_fields()]

    def clean(self) -> dict[str, Any]:
        """Remove the errors of hidden fields, whose values are not used."""
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        chosen = str(cleaned.get(self.chooser, "")).partition(":")[0]
        for name, values in self.fits.items():
            if chosen not in values.split():
                self.errors.pop(name, None)
        return cleaned

    def body(self) -> dict[str, Any]:
        return {name: value for name, value in self.cleaned_data.items() if value not in (None, "")}

    def send(self, visit: PageContext, method: str, path: str, **options: Any) -> Reply | None:
        """Send the form if it is valid. Return the reply, or None if it is invalid or was refused; the form has the errors then."""
        if not self.is_valid():
            return None
        reply = visit.call(method, path, self.body(), **options)
        if reply.ok:
            return reply
        self.blame(reply)
        return None

    def places(self) -> Mapping[str, str]:
        """Return the fields by their paths in the API, where these differ from their names."""
        return {}

    def blame(self, reply: Reply) -> None:
        """Add each of the API's errors to the field that its path, or the beginning of it, belongs to."""
        self.status = reply.status
        places = {**{name: name for name in self.fields}, **self.places()}
        for path, message in reply.errors.items():
            found = [place for place in places if re.match(rf"{re.escape(place)}(?![\w-])", path)]
            if found:
                place = max(found, key=len)
                rest = path.removeprefix(place).lstrip(".")
                self.add_error(places[place], capfirst(f"{rest} {message}".strip()))
            else:
                self.add_error(None, f"{path} {message}".strip())
        if not reply.errors:
            self.add_error(None, reply.reason)


class ValueField(forms.CharField):
    """Any value, entered as JSON."""

    widget = forms.Textarea(attrs={"rows": 4, "spellcheck": "false", "class": "mono"})

    def prepare_value(self, value: Any) -> Any:
        is_text = value is None or isinstance(value, str)
        return value if is_text else json.dumps(value, indent=2, ensure_ascii=False)

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return None
        try:
            return strict_json.loads(text.encode(), max_bytes=LONGEST_JSON)
        except strict_json.StrictJSONError as error:
            raise forms.ValidationError(f"Invalid JSON: {error.message}") from error


class JsonField(ValueField):
    """An object, entered as JSON."""

    def clean(self, value: Any) -> Any:
        value = super().clean(value)
        if not isinstance(value, dict | None):
            raise forms.ValidationError("This must be an object, such as {}.")
        return value


class NamesField(forms.CharField):
    """A list of names, separated by commas."""

    separator = ","

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(value) if isinstance(value, list) else value

    def clean(self, value: Any) -> list[str]:
        return [name.strip() for name in re.split(self.separator, super().clean(value)) if name.strip()]


class WordsField(NamesField):
    """A list of words, separated by commas or spaces."""

    separator = r"[,\s]"
