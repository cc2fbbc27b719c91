"""What the page of an item sends, and what somebody says by it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from django import forms
from django.conf import settings

from activities.api import decisions as api


class AnswerForm(forms.Form):
    """What the page of an item sends."""

    deed = forms.CharField(max_length=20)
    shown = forms.IntegerField(min_value=1)
    notes = forms.CharField(max_length=api.LONGEST_NOTES, required=False)
    option = forms.CharField(max_length=200, required=False)
    output = forms.CharField(required=False)

    def clean_notes(self) -> str:
        return _with_plain_lines(self.cleaned_data["notes"])

    def clean_output(self) -> str:
        output = _with_plain_lines(self.cleaned_data["output"])
        most: int = settings.ORCHESTRATOR_MAX_OUTPUT_BYTES
        if len(output.encode()) > most:
            raise forms.ValidationError(f"The result is longer than the {most} bytes that are allowed.")
        return output


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody says about an item."""

    deed: str
    notes: str = ""
    option: str = ""
    output: str = ""

    @property
    def said(self) -> dict[str, str]:
        """All but the deed, as the form would send it again."""
        return {name: value for name, value in asdict(self).items() if name != "deed" and value}


def _with_plain_lines(text: str) -> str:
    """Browsers send line ends as two characters."""
    return text.replace("\r\n", "\n").strip()
