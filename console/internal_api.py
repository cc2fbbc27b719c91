"""The API's own views, asked by a page for the person who looks at it: no second set of rules, and one entry in the audit trail.

What a page changes goes through here, and what a page shows as the API shows it. The person's principal is known already, and the page's
own form has been guarded against forgery, so the view is told who asks and looks at neither the session nor a token. Not inside a
transaction: the view opens its own.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, ClassVar
from urllib.parse import urlencode

from django import forms
from django.core.handlers.wsgi import WSGIRequest
from django.http import Http404, HttpRequest
from django.urls import ResolverMatch, resolve
from django.utils.functional import Promise
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from tenants.api.idempotency import REPLAYED
from tenants.principals import Principal

API = "/api/v1"
#: The field of a form whose button is to act once, however often it is pressed; `{% once %}` writes it.
ONCE = "once"
_ASKER = "console_asker"
_KEY = re.compile(r"[\w-]{16,64}", re.ASCII)
#: Of the page's own request the view hears nothing but where it came from.
_KEPT = (
    "REMOTE_ADDR",
    "HTTP_X_FORWARDED_FOR",
    "SERVER_NAME",
    "SERVER_PORT",
    "SERVER_PROTOCOL",
    "HTTP_HOST",
    "wsgi.url_scheme",
)


class _Known(BaseAuthentication):
    """Anyone who the page has found out to be asking."""

    def authenticate(self, request: Request) -> tuple[Principal, None] | None:
        who = getattr(request._request, _ASKER, None)
        return None if who is None else (who, None)


@dataclass(frozen=True, slots=True)
class Reply:
    """What the view answered. `errors` are the messages by the path of what was sent; `repeated`, whether it had been done before."""

    status: int
    data: Any = None
    errors: Mapping[str, str] = field(default_factory=dict)
    repeated: bool = False

    @property
    def ok(self) -> bool:
        return self.status < HTTPStatus.BAD_REQUEST

    @property
    def reason(self) -> str:
        """Why it was refused, in a sentence; with errors, also what of those no field of a form can show."""
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
    """What the API answers to this person. `path` begins after `/api/v1`; with a `version`, only what is still at it is changed.

    A form with `{% once %}` takes effect once: sent again it is answered as the first time.

    Raises `Http404` when the address is none. Every other refusal is a reply.
    """
    inner = _request(request, method, f"{API}{path}", body, query or {}, version)
    match = resolve(inner.path)
    inner.resolver_match = match
    setattr(inner, _ASKER, who)
    response = _view(match, method)(inner, *match.args, **match.kwargs)
    repeated = REPLAYED in response
    data = json.loads(response.content) if repeated else getattr(response, "data", None)
    errors = _errors(data) if response.status_code >= HTTPStatus.BAD_REQUEST else {}
    return Reply(response.status_code, data, errors, repeated)


def data_or_404(reply: Reply) -> Any:
    """What the view showed. Raises `Http404` when there is no such thing for this person; any other refusal is a mistake of ours."""
    if reply.status == HTTPStatus.NOT_FOUND:
        raise Http404
    if not reply.ok:
        raise RuntimeError(f"The API refused to show something: {reply.status} {reply.reason}")
    return reply.data


def _request(
    outer: HttpRequest,
    method: str,
    path: str,
    body: Mapping[str, Any] | None,
    query: Mapping[str, Any],
    version: int | None,
) -> WSGIRequest:
    content = b"" if body is None else json.dumps(body, default=_plain).encode()
    environ = {name: outer.META[name] for name in _KEPT if name in outer.META}
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
    """The view of the address, with its own permissions and another way to know who asks."""
    view: Any = match.func
    kind, initkwargs = view.cls, {**view.initkwargs, "authentication_classes": (_Known,)}
    if method == "GET":
        # A page that looks at several things is one request of one person.
        initkwargs["throttle_classes"] = ()
    actions = getattr(view, "actions", None)
    return kind.as_view(**initkwargs) if actions is None else kind.as_view(actions, **initkwargs)


def _errors(data: Any) -> dict[str, str]:
    errors = data.get("errors", ()) if isinstance(data, Mapping) else ()
    return {str(error["path"]): str(error["message"]) for error in errors}


def _plain(value: Any) -> str:
    if isinstance(value, Promise):
        return str(value)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


# Forms whose fields are members of the API: what was typed is kept, and each error that the API finds stands at its field.


class ApiForm(forms.Form):
    """Base of these forms. An empty field is left out of the body, so it has the API's default. `status` is that of the refusal."""

    status = 400
    #: By the name of a field, the values of another one that it is for, with spaces between them. Otherwise a style sheet hides it.
    fits: ClassVar[Mapping[str, str]] = {}

    @property
    def fitting(self) -> list[tuple[forms.BoundField, str]]:
        """The fields that are seen, each with what it is for."""
        return [(field, self.fits.get(field.name, "")) for field in self.visible_fields()]

    def body(self) -> dict[str, Any]:
        """What is sent to the API."""
        return {name: value for name, value in self.cleaned_data.items() if value not in (None, "")}

    def send(
        self, request: HttpRequest, who: Principal, method: str, path: str, *, version: int | None = None
    ) -> Reply | None:
        """Send the form if it makes sense; what was answered, or None when it was not sent or was refused, which the form then says."""
        if not self.is_valid():
            return None
        reply = call_api(request, who, method, path, self.body(), version=version)
        if reply.ok:
            return reply
        self.blame(reply)
        return None

    def blame(self, reply: Reply) -> None:
        """Put what the API found fault with where it belongs."""
        self.status = reply.status
        for path, message in reply.errors.items():
            name = re.split(r"[.\[]", path, maxsplit=1)[0]
            if name in self.fields:
                self.add_error(name, f"{path.removeprefix(name).lstrip('.')} {message}".strip().capitalize())
            else:
                self.add_error(None, f"{path} {message}".strip())
        if not reply.errors:
            self.add_error(None, reply.reason)


class JsonField(forms.CharField):
    """An object, typed as JSON."""

    widget = forms.Textarea(attrs={"rows": 4, "spellcheck": "false", "class": "mono"})

    def prepare_value(self, value: Any) -> Any:
        return (
            value if isinstance(value, str) or not value else json.dumps(value, indent=2, ensure_ascii=False)
        )

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return None
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError("This is no JSON, or too deep.") from error
        if not isinstance(found, dict):
            raise forms.ValidationError("This must be an object, such as {}.")
        return found


class WordsField(forms.CharField):
    """Words with commas or spaces between them, as a list."""

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(value) if isinstance(value, list) else value

    def clean(self, value: Any) -> list[str]:
        return [word for word in re.split(r"[,\s]+", super().clean(value)) if word]
