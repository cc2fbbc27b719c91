"""Texts on pages: safe Markdown, differences between versions, and words for figures."""

from __future__ import annotations

from decimal import Decimal
from time import perf_counter

import pytest

from console.inbox.detail import MOST_CHARACTERS, MOST_LINES, Difference, difference
from console.labels import band, cost_in, dollars, name_actor, outcome_label, past_tense
from console.markdown import LONGEST, render


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("*a* **b** ~~c~~ `d`", "<p><em>a</em> <strong>b</strong> <s>c</s> <code>d</code></p>\n"),
        ("# One\n## Two", "<h3>One</h3>\n<h4>Two</h4>\n"),
        ("###### Six", "<h6>Six</h6>\n"),
        ("3. three", '<ol start="3">\n<li>three</li>\n</ol>\n'),
        ("<b>no</b>", "<p>&lt;b&gt;no&lt;/b&gt;</p>\n"),
        ("| a |\n|---|", "<table>\n<thead>\n<tr>\n<th>a</th>\n</tr>\n</thead>\n</table>\n"),
        ("```js\n<x>\n```", "<pre tabindex=\"0\"><code>&lt;x&gt;\n</code></pre>\n"),
        ("", ""),
    ],
)  # fmt: skip
def test_markdown_is_rendered_as_html(text: str, html: str) -> None:
    assert render(text) == html


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("[a](https://x.example/y)", 'a</a> <span class="target">(x.example)</span>'),
        ("<mailto:a@x.example>", 'mailto:a@x.example</a> <span class="target">(mailto:a@x.example)</span>'),
        ("![p](https://x.example/y.png)", '<em>[picture: p]</em> <span class="target">(x.example)</span>'),
        ("[a](https://user:secret@x.example)", '<span class="target">(x.example)</span>'),
        ("[*a* **b**](https://x.example)", "<em>a</em> <strong>b</strong></a>"),
    ],
)
def test_a_link_shows_its_host(text: str, html: str) -> None:
    assert html in render(text)


@pytest.mark.parametrize(
    "address",
    [
        "javascript:x",
        "data:text/html,x",
        "vbscript:x",
        "/logout/",
        "//x.example",
        "file:///etc/passwd",
        "x.html",
    ],
)
def test_only_external_addresses_become_links(address: str) -> None:
    assert "href" not in render(f"[a]({address})")


def test_text_beyond_the_longest_length_is_not_rendered() -> None:
    assert len(render("a" * (LONGEST + 5))) == LONGEST + len("<p></p>\n")


@pytest.mark.parametrize(
    "piece", ["[", "![", "*a ", "](", "_a", "`", "> ", "- ", "[a](b)", "|a", "<", "&", "~~a", "[a]: b\n"]
)
def test_a_malicious_text_takes_seconds_at_most(piece: str) -> None:
    began = perf_counter()
    render(piece * (LONGEST // len(piece)))

    assert perf_counter() - began < 30  # two at most on an idle machine


def _lines(result: Difference) -> list[str]:
    marks = {"same": " ", "added": "+", "removed": "-", "gap": "~"}
    return [marks[line.kind] + "".join(text for text, _ in line.parts) for line in result.lines]


def test_a_difference_shows_added_and_removed_lines_with_some_context() -> None:
    old = "\n".join(["one", "two", "three", "four", "five", "six", "seven", "eight"])

    result = difference(old, old.replace("five", "5"))

    assert _lines(result) == ["~", " three", " four", "-five", "+5", " six", " seven", "~"]
    assert (result.added, result.removed, result.too_long) == (1, 1, False)


def test_a_line_with_small_changes_marks_the_changed_words() -> None:
    removed, added = difference("Bees fly far, he said.", "Bees fly very far, she said.").lines

    assert [text for text, changed in removed.parts if changed] == ["he"]
    assert [text for text, changed in added.parts if changed] == ["very ", "she"]


def test_lines_with_little_in_common_are_shown_whole() -> None:
    removed, added = difference("Bees fly far.", "Honey tastes sweet and is good for you").lines

    assert not any(changed for line in (removed, added) for _, changed in line.parts)


def test_equal_texts_have_no_difference() -> None:
    assert difference("a\nb", "a\nb") == Difference()


@pytest.mark.parametrize("text", ["a\n" * (MOST_LINES + 1), "a" * (MOST_CHARACTERS + 1)])
def test_texts_that_are_too_long_are_not_compared(text: str) -> None:
    assert difference("a", text) == difference(text, "a") == Difference(too_long=True)


def test_paragraphs_of_thousands_of_words_are_compared_as_lines() -> None:
    old = " ".join(f"w{number % 60}" for number in range(5_000))

    removed, added = difference(old, f"{old} more").lines

    assert (len(removed.parts), len(added.parts)) == (1, 1)


@pytest.mark.parametrize(
    ("actor", "name"),
    [
        ("user:ann", "ann"), ("token:ci", "ci (token)"), ("run:0190", "its agent"), ("engine", "the engine"), ("deadline", "the deadline"),
        ("", "somebody"), (None, "somebody"), ("cron", "cron"),
    ],
)  # fmt: skip
def test_actors_have_names(actor: str | None, name: str) -> None:
    assert name_actor(actor) == name


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (None, "0"), ({}, "0"), ({"cost_usd": None}, "0"), ({"cost_usd": "0.25"}, "0.25"), ({"cost_usd": 1.5}, "1.5"),
        ({"cost_usd": "NaN"}, "0"), ({"cost_usd": "-1"}, "0"), ({"cost_usd": "much"}, "0"), ({"cost_usd": [1]}, "0"), ("text", "0"),
    ],
)  # fmt: skip
def test_a_cost_is_read_from_any_report_of_an_agent(usage: object, cost: str) -> None:
    assert cost_in(usage) == Decimal(cost)


def test_figures_and_verbs_have_words() -> None:
    assert [dollars(Decimal(amount)) for amount in ("0", "0.0312", "1.5")] == ["$0.00", "$0.0312", "$1.50"]
    assert [band(priority) for priority in (1, 4, 5, 10, 19, 20)] == [
        "urgent",
        "urgent",
        "gated",
        "normal",
        "normal",
        "background",
    ]
    assert (past_tense("take_up"), past_tense("something_new")) == ("claimed", "something new")
    assert (outcome_label("approved"), outcome_label("created")) == ("Approved", "Changed")
