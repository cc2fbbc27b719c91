"""The forms of a page, sent as a browser without scripts sends them."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from django.http import HttpResponse
from django.test import Client


@dataclass
class Form:
    """A form's fields with their values, and its buttons."""

    action: str
    method: str
    fields: dict[str, list[str]] = field(default_factory=dict)
    buttons: list[tuple[str, str]] = field(default_factory=list)
    choices: dict[str, list[str]] = field(default_factory=dict)

    def send(self, browser: Client, button: tuple[str, str] | None = None, **filled: Any) -> HttpResponse:
        """Fill in fields and press a button. Fails if the form does not have them."""
        assert filled.keys() <= self.fields.keys() | self.choices.keys(), f"no such fields: {filled}"
        assert button is None or button in self.buttons, f"no such button among {self.buttons}"
        sent: dict[str, Any] = {**self.fields, **filled, **({button[0]: button[1]} if button else {})}
        return browser.post(self.action.partition("#")[0], sent)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: dict[str, Form] = {}
        self.elements: list[
            tuple[str, dict[str, str]]
        ] = []  # with the id of their form, which may follow later
        self.selected: dict[int, list[str]] = {}  # the selected options by the index of their select
        self.open = ""
        self.area = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.open = attributes.get("id") or f"form {len(self.forms)}"
            self.forms[self.open] = Form(attributes.get("action", ""), attributes.get("method", "get"))
        elif tag in ("input", "textarea", "button", "select") and attributes.get("name"):
            self.elements.append((attributes.get("form", self.open), {"tag": tag, **attributes}))
            self.area = attributes["name"] if tag == "textarea" else ""
        elif tag == "option" and "selected" in attributes:
            self.selected.setdefault(len(self.elements) - 1, []).append(attributes.get("value", ""))

    def handle_data(self, data: str) -> None:
        if self.area:
            self.elements[-1][1]["value"] = data

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self.open = ""
        elif tag == "textarea":
            self.area = ""


def forms_of(answer: HttpResponse) -> dict[str, Form]:
    """Return the forms of a page by their ids."""
    reader = _Reader()
    reader.feed(answer.content.decode())
    for place, (owner, attributes) in enumerate(reader.elements):
        if owner not in reader.forms:
            continue  # because no form sends it
        form, name, value = reader.forms[owner], attributes["name"], attributes.get("value", "")
        if attributes["tag"] == "button":
            form.buttons.append((name, value))
        elif attributes.get("type") in ("radio", "checkbox"):
            form.choices.setdefault(name, []).append(value)
            if "checked" in attributes:
                form.fields.setdefault(name, []).append(value)
        else:
            form.fields.setdefault(name, []).extend(reader.selected.get(place, [value]))
    return reader.forms
