"""The form of a new activity: a piece of work for an agent, or a question to people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django import forms

from activities.states import BANDS
from agents import configuration
from console.internal_api import ApiForm, JsonField, Reply

PERSON = "person"
_STANDS_IN = {"agent_role": "who", "input.content": "content"}


class NewActivityForm(ApiForm):
    """What there is to do, and who does it."""

    #: By the name of a field, for whom it is; the others are for all.
    fits: ClassVar[Mapping[str, str]] = {
        "human_role": PERSON, "is_approval_gate": PERSON, "content": "agent", "params": "agent", "requires_approval": "agent",
    }  # fmt: skip

    name = forms.CharField(max_length=200)
    who = forms.ChoiceField(label="Done by")
    human_role = forms.CharField(
        label="Role of the person",
        required=False,
        max_length=63,
        help_text="Whose inbox it belongs to, such as editor.",
    )
    description = forms.CharField(
        label="What there is to do",
        required=False,
        strip=False,
        max_length=100_000,
        widget=forms.Textarea(attrs={"rows": 4}),
    )
    content = forms.CharField(
        label="What it works on", required=False, strip=False, widget=forms.Textarea(attrs={"rows": 4})
    )
    params = JsonField(label="Parameters", required=False, help_text='As JSON, such as {"topic": "bees"}.')
    priority = forms.ChoiceField(choices=[(name, name) for name in BANDS], initial="normal")
    requires_approval = forms.BooleanField(label="A person approves its output", required=False)
    is_approval_gate = forms.BooleanField(label="Answered by yes or no, not done", required=False)

    def __init__(self, data: Any = None) -> None:
        super().__init__(data)
        roles = [(f"agent:{role}", role) for role in sorted(configuration.known_roles())]
        self.fields["who"].choices = [("Agents", roles), ("People", [(PERSON, "A person")])]  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        given = super().clean() or self.cleaned_data
        is_person = given.get("who") == PERSON
        for name, kind in self.fits.items():
            if (kind == PERSON) != is_person:
                self.errors.pop(name, None)  # nobody sees the field, and nothing is made of it
        if is_person and not given.get("human_role"):
            self.add_error("human_role", "This is needed here.")
        return given

    def body(self) -> dict[str, Any]:
        given = self.cleaned_data
        who = PERSON if given["who"] == PERSON else "agent"
        body: dict[str, Any] = {
            "name": given["name"],
            "description": given["description"],
            "priority": given["priority"],
        }
        if who == PERSON:
            return body | {"human_role": given["human_role"], "is_approval_gate": given["is_approval_gate"]}
        body |= {
            "agent_role": given["who"].partition(":")[2],
            "requires_approval": given["requires_approval"],
        }
        body |= {"params": given["params"]} if given["params"] else {}
        return body | ({"input": {"content": given["content"]}} if given["content"].strip() else {})

    def blame(self, reply: Reply) -> None:
        told = {_STANDS_IN.get(path, path): message for path, message in reply.faults.items()}
        super().blame(Reply(reply.status, reply.data, told))
