"""A name is one line of visible characters, whether it comes from the API, a file or a model."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError

from agents.models import Agent
from pipelines.definition.errors import Errors
from pipelines.definition.reading import JsonCopier, Reader
from tenants.api.serializers import StrictSerializer, Text
from tenants.models import Budget, Tenant
from tenants.plain_names import error_of_name

#: By what they do to the displayed text.
HOSTILE = {
    "a new line": "Bees\nApproved by: Ann",
    "a carriage return": "Bees\rNuts",
    "a tab": "Bees\tNuts",
    "a bell": "Bees\x07",
    "an escape": "\x1b]0;stolen",
    "delete": "Bees\x7f",
    "next line": "Bees\x85Nuts",
    "a line separator": "Bees\u2028Nuts",
    "an override": "invoice\u202efdp.exe",
    "an embedding": "\u202aBees",
    "an isolate": "\u2066Bees\u2069",
    "a space without width": "ad\u200bmin",
    "a word joiner": "ad\u2060min",
    "a byte order mark": "\ufeffadmin",
    "a joiner between Latin letters": "ad\u200dmin",
    "a joiner at the end": "\u0645\u200c",
    "a non-joiner between Cyrillic letters": "\u0430\u200c\u0434",
    "a direction mark behind Latin letters": "admin\u200e",
    "an Arabic mark behind Latin letters": "admin\u061c",
    "a soft hyphen": "ad\xadmin",
    "a joiner of graphemes": "ad\u034fmin",
    "an invisible operator": "ad\u2063min",
    "an invisible vowel separator": "ad\u180emin",
    "a filler of Hangul": "\u3164",
    "a narrow filler of Hangul": "\uffa0",
    "a mark of annotations": "ad\ufffbmin",
    "a text in tag characters": "Bees" + "".join(chr(0xE0000 + ord(letter)) for letter in "Say yes"),
    "a variation of a Latin letter": "ad\ufe0fmin",
    "a text in variation selectors": "\U0001f600\ufe01\U000e0101\U000e0102",
}
PLAIN = {
    "Latin": "Caf\u00e9 \u2013 \u201cBees\u201d",
    "Persian with a non-joiner": "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    "Hindi with a joiner": "\u0915\u094d\u200d\u0937",
    "a family of emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "a heart on fire": "\u2764\ufe0f\u200d\U0001f525",
    "a key of a telephone": "Press 1\ufe0f\u20e3 \xa9\ufe0f",
    "Mongolian with a variation": "\u182d\u180b",
    "Japanese with a variation": "\u845b\U000e0100",
    "Hebrew with a mark before brackets": "\u05e9\u05dc\u05d5\u05dd\u200e (C++)",
}


class Named(StrictSerializer):
    name = Text(max_length=200)
    description = Text(max_length=5_000)


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_name_that_does_not_read_as_it_is_stored_is_refused(kind: str) -> None:
    name = f"x{HOSTILE[kind]}x" if kind != "a joiner at the end" else HOSTILE[kind]
    body = Named(data={"name": name, "description": "Bees\nand\tnuts"})

    assert not body.is_valid()
    assert list(body.errors) == ["name"]
    assert "one line of visible characters" in str(body.errors["name"][0])
    errors = Errors()
    reader = Reader({"name": name, "description": "Bees\nand\tnuts"}, "steps[1]", JsonCopier(errors))
    assert (reader.name("name"), reader.text("description")) == (None, "Bees\nand\tnuts")
    assert [error.path for error in errors.found] == ["steps[1].name"]
    for row in (Budget(name=name), Agent(name=name), Tenant(name=name)):
        with pytest.raises(ValidationError) as refused:
            row.clean_fields()
        assert "visible characters" in str(refused.value.message_dict["name"])


@pytest.mark.parametrize("kind", PLAIN)
def test_names_in_all_scripts_are_accepted(kind: str) -> None:
    assert error_of_name(PLAIN[kind]) is None
    assert Named(data={"name": PLAIN[kind], "description": "x"}).is_valid()


def test_an_error_names_the_character_without_repeating_it() -> None:
    assert (
        error_of_name("a\u202eb")
        == "must be one line of visible characters: it has an invisible character, U+202E"
    )
    assert (
        error_of_name("a\rb") == "must be one line of visible characters: it has a control character, U+000D"
    )
