"""Forms as a browser without scripts fills them in and sends them."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from django.http import HttpResponse
from django.test import Client


@dataclass
class Form:
    """A form's fields with the values that it would send, and its buttons."""

    action: str
    method: str
    fields: dict[str, list[str]] = field(default_factory=dict)
    buttons: list[tuple[str, str]] = field(default_factory=list)
    choices: dict[str, list[str]] = field(default_factory=dict)

    def send(self, browser: Client, button: tuple[str, str] | None = None, **filled: Any) -> HttpResponse:
        """Press a button that the form has. Anyone who fills in a field that it does not have fails."""
        assert filled.keys() <= self.fields.keys() | self.choices.keys(), f"no such fields: {filled}"
        assert button is None or button in self.buttons, f"no such button among {self.buttons}"
        sent: dict[str, Any] = {**self.fields, **filled, **({button[0]: button[1]} if button else {})}
        return browser.post(self.action.partition("#")[0], sent)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: dict[str, Form] = {}
        self.waiting: list[
            tuple[str, dict[str, str]]
        ] = []  # fields that name their form, which may come later
        self.chosen: dict[int, list[str]] = {}  # the options that are selected, by the place of their select
        self.open = ""
        self.area = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.open = given.get("id") or f"form {len(self.forms)}"
            self.forms[self.open] = Form(given.get("action", ""), given.get("method", "get"))
        elif tag in ("input", "textarea", "button", "select") and given.get("name"):
            self.waiting.append((given.get("form", self.open), {"tag": tag, **given}))
            self.area = given["name"] if tag == "textarea" else ""
        elif tag == "option" and "selected" in given:
            self.chosen.setdefault(len(self.waiting) - 1, []).append(given.get("value", ""))

    def handle_data(self, data: str) -> None:
        if self.area:
            self.waiting[-1][1]["value"] = data

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self.open = ""
        elif tag == "textarea":
            self.area = ""


def forms_of(answer: HttpResponse) -> dict[str, Form]:
    """The forms of a page by their ids."""
    reader = _Reader()
    reader.feed(answer.content.decode())
    for place, (owner, given) in enumerate(reader.waiting):
        if owner not in reader.forms:
            continue  # a field of no form is sent by nobody
        form, name, value = reader.forms[owner], given["name"], given.get("value", "")
        if given["tag"] == "button":
            form.buttons.append((name, value))
        elif given.get("type") in ("radio", "checkbox"):
            form.choices.setdefault(name, []).append(value)
            if "checked" in given:
                form.fields.setdefault(name, []).append(value)
        else:
            form.fields.setdefault(name, []).extend(reader.chosen.get(place, [value]))
    return reader.forms
