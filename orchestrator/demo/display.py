"""Output of the demonstration: a live table while it runs, then a summary on one screen, or all outputs."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.markdown import Markdown
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from console.labels import tone_of
from orchestrator.demo.story import Agency, Campaign, Weekly, work_of

_COLOURS = {"good": "green", "ask": "magenta", "live": "cyan", "bad": "red"}
_LONGEST = 1_200  # characters of one output on the screen; the files have all of it
_LONGEST_LINE = 92


def table(agencies: list[Agency]) -> Table:
    rows = _table("Content brief pipeline", "agency", "step", "round", "agent role", "status", "seconds")
    for agency in agencies:
        for activity in work_of(agency):
            status = activity["status"]
            rows.add_row(
                agency.name, activity["step"], str(activity["round"]), activity["agent_role"],
                _colour_status(status), _seconds(activity),
            )  # fmt: skip
    return rows


def _table(title: str, *headings: str) -> Table:
    rows = Table(title=title, title_justify="left", expand=False)
    for heading in headings:
        rows.add_column(heading, no_wrap=True)
    return rows


def usage_table(report: dict[str, Any]) -> Table:
    """Return a table of the tenant's usage by role and model, with a total."""
    rows = _table(
        "Ledger: usage of the tenant so far", "agent role", "model", "runs", "tokens in", "tokens out", "cost"
    )
    for group in (*report["results"], {"role": "all", "model": "", **report["total"]}):
        cost = f"${group['cost_usd']}"
        figures = (str(group[name]) for name in ("runs", "input_tokens", "output_tokens"))
        rows.add_row(group["role"], group["model"] or "", *figures, cost)
    return rows


def _colour_status(status: str) -> str:
    return f"[{_COLOURS.get(tone_of(status), 'white')}]{status}[/]"


def campaign_table(campaign: Campaign) -> Table:
    """Return a table of the activities of the second act, with the reason of their last run."""
    rows = _table("Social calendar: agents that ask", "activity", "agent role", "reason", "status")
    for activity in campaign.work:
        status = activity["status"]
        rows.add_row(
            activity["name"], activity["agent_role"], activity["wake_reason"] or "",
            _colour_status(status),
        )  # fmt: skip
    return rows


def campaign_live(campaign: Campaign) -> Group:
    """Return the live display of the second act."""
    return Group(campaign_table(campaign), *campaign.log)


def plan_of(weekly: Weekly) -> Panel:
    plan = weekly.preview
    times = "\n".join(f"  {at}" for at in plan["fires_at"])
    text = (
        f"{plan['in_words']}\nnext times (UTC):\n{times}\n"
        f"each time: {plan['jobs']} jobs in {plan['batches']} batches, from {weekly.rows} rows"
    )
    return Panel(text, title="Schedule: preview", title_align="left", expand=False)


def jobs_table(weekly: Weekly) -> Table:
    rows = _table("Schedule: a job for every row", "row", "not before", "status")
    for activity in weekly.jobs:
        status, text = activity["status"], str(activity["params"].get("text", ""))
        begins = (activity["not_before"] or activity["created_at"])[11:21]
        rows.add_row(text.partition("\n")[0].lstrip("# ")[:48], begins, _colour_status(status))
    return rows


def weekly_live(weekly: Weekly) -> Group:
    """Return the live display of the third act."""
    return Group(jobs_table(weekly), f"execution: {weekly.execution.get('status', 'starting')}")


def print_output(console: Console, title: str, text: str) -> None:
    """Print one output, shortened to fit on a screen."""
    excerpt = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n\n… ({len(text)} characters)"
    console.print(Panel(Markdown(excerpt), title=title, title_align="left"))


def live(agencies: list[Agency]) -> Group:
    """Return the live display of the first act."""
    lines = [f"[bold]{agency.name}[/]: {line}" for agency in agencies for line in agency.log]
    return Group(table(agencies), *lines)


def summary(agency: Agency, outputs: dict[str, dict[str, Any]]) -> Table:
    """Return a table with one line per step: the beginning of its output, and the editor's decision."""
    rows = Table(title=agency.name, title_justify="left", box=None, pad_edge=False)
    rows.add_column("step", no_wrap=True, min_width=9)
    rows.add_column("status", no_wrap=True, min_width=9)
    rows.add_column("s", no_wrap=True, justify="right", min_width=5)
    rows.add_column("result")
    for activity in work_of(agency):
        content = outputs.get(activity["id"], {}).get("content") or ""
        step = activity["step"] + (f", {activity['round']}" if activity["round"] > 1 else "")
        rows.add_row(step, _colour_status(activity["status"]), _seconds(activity), Text(first_line(content)))
        if decision := agency.decisions.get((activity["step"], activity["round"])):
            rows.add_row("", "", "", Text(decision, style="magenta"))
    return rows


def campaign_summary(campaign: Campaign) -> RenderableType:
    """Return the questions of the agents and the answers of people."""
    title = Text("Agents that ask people", style="italic")
    done = Text(
        f"  {len(campaign.work)} pieces of work done: {', '.join(each['name'] for each in campaign.work)}"
    )
    return Group(title, *(Text(f"  {line}") for line in campaign.log), done)


def weekly_summary(weekly: Weekly) -> RenderableType:
    """Return the schedule's times, and the result of running it now."""
    plan = weekly.preview
    title = Text("A schedule over a table", style="italic")
    times = f"  {plan['in_words']}; next at {plan['fires_at'][0]}"
    result = f"  run now: a job for each of {weekly.rows} rows, {plan['batches']} batches: {weekly.execution['status']}"
    return Group(title, Text(times), Text(result))


def first_line(markdown: str) -> str:
    """Return the beginning of a text in one line, without its title and its markup."""
    lines = (line for line in markdown.splitlines() if not line.startswith("# "))
    plain = (" ".join(re.sub(r"[#*_`|]+", " ", line).strip(" -").split()) for line in lines)
    text = " · ".join(line for line in plain if set(line) - set("-: "))
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}…"


def results(console: Console, agency: Agency, outputs: dict[str, dict[str, Any]]) -> None:
    """Print the output of each step, in the order of the work."""
    for activity in work_of(agency):
        output = outputs.get(activity["id"])
        if output is None:
            continue
        title = f"{agency.name} · {activity['step']} · round {activity['round']} · {activity['status']}"
        print_output(console, title, output.get("content") or "")


def _seconds(activity: dict[str, Any]) -> str:
    if not activity.get("started_at") or not activity.get("finished_at"):
        return ""
    began, ended = (datetime.fromisoformat(activity[key]) for key in ("started_at", "finished_at"))
    return f"{(ended - began).total_seconds():.2f}"
