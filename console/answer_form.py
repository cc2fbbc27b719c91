"""What the page of an item sends, and what somebody says by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django import forms
from django.conf import settings

from activities.api import decisions as api
from console.deeds import APPROVE, APPROVE_EDITED
from console.editing import MOST_CHARACTERS, mark_of, with_plain_lines

EDITED_NOTHING = "You have edited the text: choose “Approve as edited”, or put it back as it was."
EMPTIED = "There is no text left to approve."
TOO_LONG = f"The text has more than the {MOST_CHARACTERS} characters that can be edited here."


class AnswerForm(forms.Form):
    """What the page of an item sends."""

    deed = forms.CharField(max_length=20)
    shown = forms.IntegerField(min_value=1)
    notes = forms.CharField(max_length=api.LONGEST_NOTES, required=False)
    option = forms.CharField(max_length=200, required=False)
    output = forms.CharField(required=False)
    edited = forms.CharField(required=False)
    edited_from = forms.CharField(max_length=64, required=False)

    def clean_notes(self) -> str:
        return with_plain_lines(self.cleaned_data["notes"])

    def clean_output(self) -> str:
        return _short_enough(with_plain_lines(self.cleaned_data["output"]))

    def clean_edited(self) -> str:
        return with_plain_lines(self.cleaned_data["edited"])

    def clean(self) -> dict[str, Any]:
        """An edited text counts with its own button alone. One that is as it was shown is no edited one."""
        given = dict(self.cleaned_data)
        shown, edited = given.pop("edited_from", ""), given.pop("edited", "")
        deed, is_as_shown = given.get("deed"), mark_of(edited) == shown
        if deed == APPROVE.name and shown and not is_as_shown:
            self.add_error("edited", EDITED_NOTHING)
        elif deed == APPROVE_EDITED.name and is_as_shown:
            given["deed"] = APPROVE.name
        elif deed == APPROVE_EDITED.name:
            given["edited"] = self._checked(edited)
        return given

    def _checked(self, edited: str) -> str:
        if not edited:
            self.add_error("edited", EMPTIED)
        elif len(edited) > MOST_CHARACTERS:
            self.add_error("edited", TOO_LONG)
        else:
            try:
                return _short_enough(edited)
            except forms.ValidationError as fault:
                self.add_error("edited", fault)
        return ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody says about an item."""

    deed: str
    notes: str = ""
    option: str = ""
    output: str = ""
    edited: str = ""  # the text that is approved in the place of the one that was shown
    rest: Mapping[str, Any] | None = None  # what stays beside it

    @property
    def said(self) -> dict[str, str]:
        """All but the deed, as the form would send it again."""
        given = {"notes": self.notes, "option": self.option, "output": self.output, "edited": self.edited}
        return {name: value for name, value in given.items() if value}


def _short_enough(text: str) -> str:
    most: int = settings.ORCHESTRATOR_MAX_OUTPUT_BYTES
    if len(text.encode()) > most:
        raise forms.ValidationError(f"The result is longer than the {most} bytes that are allowed.")
    return text
