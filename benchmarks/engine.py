"""What the engine does in a second, beside Celery by hand on the same servers in the same run.

`python -m benchmarks.engine` runs all; `--only steps,latency` some; `--quick` with a tenth of the work. Each figure is the median of
`--repeats`, with the extremes. The result is printed and stored in `benchmarks/results/` with the command that made it.
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
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import setting

RESULTS = Path(__file__).parent / "results"
Figures = dict[str, float]


def main() -> None:
    numbers = {
        "WAITING": "activities that wait in the scenario `rows`",
        "ENDED": "activities that have ended in the scenario `rows`",
    }
    run("engine", "benchmarks.scenarios", __doc__ or "", numbers=numbers)


def run(title: str, module: str, description: str, *, numbers: Mapping[str, str] | None = None) -> None:
    """Measure the scenarios `ALL` of a module, which is imported when there are servers, and store the result under the title.

    `numbers` are constants of the module that an option of the same name may change, each with what it means.
    """
    options = _options(title, description, numbers or {})
    console = Console()
    with setting.servers() as folder:
        scenarios = importlib.import_module(module)
        given = {
            name: value for name in numbers or {} if (value := getattr(options, name.lower())) is not None
        }
        for name, value in given.items():
            setattr(scenarios, name, value)
        wanted = options.only.split(",") if options.only else list(scenarios.ALL)
        if unknown := set(wanted) - set(scenarios.ALL):
            sys.exit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(scenarios.ALL)}")
        scale = 0.1 if options.quick else 1.0
        measured: dict[str, dict[str, list[float]]] = {}
        with Progress(console=console) as progress:
            task = progress.add_task("measuring", total=options.repeats * len(wanted))
            for _ in range(options.repeats):
                for name in wanted:
                    progress.update(task, description=name)
                    _measure(measured.setdefault(name, {}), scenarios.ALL[name], folder, scale)
                    progress.advance(task)
    document = _document(title, measured, options, given)
    console.print(_table(title, document))
    if not options.quick:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-{title}.json"
        previous = json.loads(path.read_text()) if path.exists() else {}
        document["scenarios"] = previous.get("scenarios", {}) | document["scenarios"]
        path.write_text(json.dumps(document, indent=2) + "\n")
        console.print(
            f"stored in {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path.name}"
        )


def _measure(
    into: dict[str, list[float]], scenario: Callable[[Path, float], Figures], folder: Path, scale: float
) -> None:
    for figure, value in scenario(folder, scale).items():
        into.setdefault(figure, []).append(value)


def _document(
    title: str,
    measured: dict[str, dict[str, list[float]]],
    options: argparse.Namespace,
    given: Mapping[str, float],
) -> dict[str, Any]:
    """What is stored: each scenario with the command and the commit that gave its figures."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    origin = {
        "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "commit": commit,
        "repeats": options.repeats,
    }
    more = "".join(f" {_option_of(name)} {value:g}" for name, value in given.items())
    scenarios = {
        name: {
            "command": f"python -m benchmarks.{title} --repeats {options.repeats} --only {name}{more}",
            **origin,
            "figures": {
                figure: {
                    "median": round(statistics.median(values), 4),
                    "min": round(min(values), 4),
                    "max": round(max(values), 4),
                }
                for figure, values in rows.items()
            },
        }
        for name, rows in measured.items()
    }
    return {"python": platform.python_version(), "processors": os.cpu_count(), "scenarios": scenarios}


def _table(title: str, document: dict[str, Any]) -> Table:
    table = Table("scenario", "figure", "median", "min", "max", title=title)
    for name, scenario in document["scenarios"].items():
        for figure, values in scenario["figures"].items():
            table.add_row(name, figure, *(f"{values[key]:,.3f}" for key in ("median", "min", "max")))
    return table


def _options(title: str, description: str, numbers: Mapping[str, str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{title}", description=description)
    parser.add_argument("--only", default="", help="names of scenarios, with commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work; nothing is stored")
    for name, meaning in numbers.items():
        parser.add_argument(_option_of(name), type=float, help=meaning)
    return parser.parse_args()


def _option_of(constant: str) -> str:
    return f"--{constant.lower().replace('_', '-')}"


if __name__ == "__main__":
    main()
