"""Runs the scenarios of a topic on servers of their own, prints the figures and stores them in `benchmarks/results/`.

Each figure is the median of `--repeats`, with the smallest and the largest value. The stored file names the command and the commit.
A module of scenarios is imported after its servers have started, because it uses Django. It defines `SCENARIOS`: functions that get the
folder of the servers and a scale (1.0, or 0.1 with `--quick`) and return their figures. It may define `BOUNDS`: figures that must lie
between two values.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import environment

RESULTS = Path(__file__).parent / "results"
Samples = dict[str, dict[str, list[float]]]  # scenario -> figure -> a value for each repeat
Bounds = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Topic:
    """A module of scenarios. `constants` of the module can be set by options of the same name; their values are the help texts."""

    module: str
    description: str
    repeats: int = 3
    constants: Mapping[str, str] = field(default_factory=dict)


TOPICS = {
    "engine": Topic(
        "benchmarks.engine",
        "Steps per second, latency, submission, recovery and idle costs, compared with a plain Celery program.",
        constants={
            "WAITING": "activities that wait in the scenario `rows`",
            "ENDED": "activities that have ended in the scenario `rows`",
        },
    ),
    "peers": Topic(
        "benchmarks.peers.scenarios",
        "1,000 runs of 3 steps on other engines. The first run creates an environment for them with pip.",
    ),
    "fairness": Topic(
        "benchmarks.fairness",
        "Shares of tenants, waits, and idle slots. Exits with 1 if a figure is out of its bounds.",
        repeats=1,
    ),
    "approvals": Topic(
        "benchmarks.approvals", "Response times of decisions, and the start of the work that waited for one."
    ),
    "schedules": Topic(
        "benchmarks.schedules", "Schedules that fire in the same minute, and rows that become jobs."
    ),
    "held_runs": Topic(
        "benchmarks.held_runs",
        "2,000 and 10,000 runs that agents have accepted and complete later.",
        repeats=1,
    ),
    "pages": Topic(
        "benchmarks.pages", "Response times of the console with 100,000 activities of 50 tenants."
    ),
    "neighbours": Topic(
        "benchmarks.neighbours", "What one tenant at full speed costs another one.", repeats=1
    ),
    "providers": Topic(
        "benchmarks.providers",
        "Five ways to make 300 calls to a provider that allows 50 a minute.",
        constants={
            "MINUTE_SECONDS": "length of a minute of the provider, in seconds; 60 takes 15 minutes per repeat"
        },
    ),
}


def main() -> None:
    options = _parse_options()
    topic, console = TOPICS[options.topic], Console()
    constants = {
        name: value for name in topic.constants if (value := getattr(options, name.lower())) is not None
    }
    with environment.servers() as folder:
        module = importlib.import_module(topic.module)
        for name, value in constants.items():
            setattr(module, name, value)
        samples = _measure(module, options, folder, console)
    bounds: Bounds = getattr(module, "BOUNDS", {})
    document = _document(options, constants, samples)
    console.print(_table(options.topic, document, bounds))
    if not options.quick:
        _store(options.topic, document, console)
    if any(not _is_within(bounds, *each) for each in _medians(document)):
        sys.exit(1)


def _measure(module: Any, options: argparse.Namespace, folder: Path, console: Console) -> Samples:
    names = options.only.split(",") if options.only else list(module.SCENARIOS)
    if unknown := set(names) - set(module.SCENARIOS):
        sys.exit(
            f"Unknown scenarios: {', '.join(sorted(unknown))}. There are: {', '.join(module.SCENARIOS)}."
        )
    samples: Samples = {name: {} for name in names}
    with Progress(console=console) as progress:
        task = progress.add_task("measuring", total=options.repeats * len(names))
        for _ in range(options.repeats):
            for name in names:
                progress.update(task, description=name)
                for figure, value in module.SCENARIOS[name](folder, 0.1 if options.quick else 1.0).items():
                    samples[name].setdefault(figure, []).append(value)
                progress.advance(task)
    return samples


def _document(
    options: argparse.Namespace, constants: Mapping[str, float], samples: Samples
) -> dict[str, Any]:
    """Return what is stored: for each scenario its figures, with the command and the commit that produced them."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    arguments = "".join(f" {_option(name)} {value:g}" for name, value in constants.items())
    scenarios = {
        name: {
            "command": f"python -m benchmarks {options.topic} --repeats {options.repeats} --only {name}{arguments}",
            "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "commit": commit,
            "repeats": options.repeats,
            "figures": {
                figure: {
                    "median": round(statistics.median(values), 4),
                    "min": round(min(values), 4),
                    "max": round(max(values), 4),
                }
                for figure, values in figures.items()
            },
        }
        for name, figures in samples.items()
    }
    return {"python": platform.python_version(), "processors": os.cpu_count(), "scenarios": scenarios}


def _store(title: str, document: dict[str, Any], console: Console) -> None:
    """Write today's file of the topic. Scenarios that were measured earlier today and not now are kept."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-{title}.json"
    previous = json.loads(path.read_text()) if path.exists() else {}
    document["scenarios"] = previous.get("scenarios", {}) | document["scenarios"]
    path.write_text(json.dumps(document, indent=2) + "\n")
    console.print(f"Stored in benchmarks/results/{path.name}")


def _table(title: str, document: dict[str, Any], bounds: Bounds) -> Table:
    columns = ["scenario", "figure", "median", "min", "max", *(["bounds"] if bounds else [])]
    table = Table(*columns, title=title)
    for name, scenario in document["scenarios"].items():
        for figure, values in scenario["figures"].items():
            row = [name, figure, *(f"{values[key]:,.3f}" for key in ("median", "min", "max"))]
            if figure in bounds:
                least, most = bounds[figure]
                verdict = "ok" if _is_within(bounds, figure, values["median"]) else "FAILED"
                row.append(f"{least:g} to {most:g}: {verdict}")
            table.add_row(*row)
    return table


def _medians(document: dict[str, Any]) -> list[tuple[str, float]]:
    return [
        (figure, values["median"])
        for scenario in document["scenarios"].values()
        for figure, values in scenario["figures"].items()
    ]


def _is_within(bounds: Bounds, figure: str, value: float) -> bool:
    least, most = bounds.get(figure, (value, value))
    return least <= value <= most


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure one topic.")
    topics = parser.add_subparsers(dest="topic", required=True, metavar="TOPIC")
    for name, topic in TOPICS.items():
        each = topics.add_parser(name, help=topic.description, description=topic.description)
        each.add_argument("--only", default="", help="names of scenarios, separated by commas (default: all)")
        each.add_argument("--repeats", type=int, default=topic.repeats, help="default: %(default)s")
        each.add_argument("--quick", action="store_true", help="a tenth of the work; stores nothing")
        for constant, meaning in topic.constants.items():
            each.add_argument(_option(constant), type=float, help=meaning)
    return parser.parse_args()


def _option(constant: str) -> str:
    return f"--{constant.lower().replace('_', '-')}"


if __name__ == "__main__":
    main()
