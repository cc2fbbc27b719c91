"""The last screen of the demonstration."""

from __future__ import annotations

from rich.console import Console

from orchestrator.demo import display
from orchestrator.demo.story import Agency

BRIEF = "# Content brief: Bees\n\n* Audience: **Readers** who are new\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"


def test_a_text_is_summarised_in_a_line_without_its_title_and_markup() -> None:
    assert display.first_line(BRIEF) == "Audience: Readers who are new · a b · 1 2"


def test_a_long_text_is_cut_and_says_so() -> None:
    line = display.first_line("word " * 100)
    assert len(line) == 93
    assert line.endswith("…")


def test_the_summary_has_each_step_with_what_it_produced_and_what_the_editor_said() -> None:
    agency = Agency("Agency North", None, None, "note")  # type: ignore[arg-type]  # nobody is asked
    for number, status in ((1, "rejected"), (2, "approved")):
        agency.activities[str(number)] = {
            "id": str(number), "assignee_type": "agent", "created_at": str(number), "step": "brief", "round": number, "status": status,
            "started_at": "2026-08-01T12:00:00Z", "finished_at": "2026-08-01T12:00:01.5Z",
        }  # fmt: skip
    agency.decisions = {("brief", 1): "editor rejected: Shorter.", ("brief", 2): "editor approved: Good."}
    console = Console(record=True, width=100)
    console.print(display.summary(agency, {"1": {"content": BRIEF}, "2": {"content": "Shorter brief"}}))
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert "brief rejected 1.50 Audience: Readers who are new · a b · 1 2" in lines
    assert "editor rejected: Shorter." in lines
    assert "brief, 2 approved 1.50 Shorter brief" in lines
    assert lines.index("editor approved: Good.") > lines.index("editor rejected: Shorter.")
