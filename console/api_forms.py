"""Forms whose fields are members of the API: what was typed is kept, and each fault that the API finds stands at its field."""

from __future__ import annotations

import json
import re
from typing import Any

from django import forms
from django.http import HttpRequest

from console import api_door
from console.api_door import Reply
from tenants.principals import Principal

SURE = "sure"


class ApiForm(forms.Form):
    """Base of these forms. An empty field is left out of the body, so it has the API's default. `status` is that of the refusal."""

    status = 400

    def body(self) -> dict[str, Any]:
        """What is sent to the API."""
        return {name: value for name, value in self.cleaned_data.items() if value not in (None, "")}

    def send(
        self, request: HttpRequest, who: Principal, method: str, path: str, *, version: int | None = None
    ) -> Reply | None:
        """Send the form if it makes sense; what was answered, or None when it was not sent or was refused, which the form then says."""
        if not self.is_valid():
            return None
        reply = api_door.ask(request, who, method, path, self.body(), version=version)
        if reply.ok:
            return reply
        self.blame(reply)
        return None

    def blame(self, reply: Reply) -> None:
        """Put what the API found fault with where it belongs."""
        self.status = reply.status
        for path, message in reply.faults.items():
            name = re.split(r"[.\[]", path, maxsplit=1)[0]
            if name in self.fields:
                self.add_error(name, f"{path.removeprefix(name).lstrip('.')} {message}".strip().capitalize())
            else:
                self.add_error(None, f"{path} {message}".strip())
        if not reply.faults:
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
