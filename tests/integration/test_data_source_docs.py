"""The examples of docs/data-sources.md are run, and its tables are compared with the code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from agents.scheduler_settings import KEYS, SchedulerSettings
from pipelines import datasets, tables
from pipelines.data_sources import (
    DataSourceError,
    Dimension,
    Pacing,
    agree,
    estimate,
    inputs,
    looks_like,
    parse,
    resolve,
)
from pipelines.datasets import Declaration, Upload
from pipelines.tables import relations
from tenants.models import Tenant

DOCUMENT = Path(settings.BASE_DIR, "docs", "data-sources.md").read_text(encoding="utf-8")
TICKER = {
    "id": "string",
    "enabled": "boolean",
    "active": "boolean",
    "status": "string",
    "createdAt": "datetime",
}
USER = {"id": "integer", "email": "string", "active": "boolean"}


def rows_of(name: str) -> list[list[str]]:
    """The rows of the table between `<!-- name -->` and its end."""
    text = DOCUMENT.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert lines, name
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


EXAMPLES, REFUSED = rows_of("examples"), rows_of("refused")


@pytest.fixture
def seeded(tenant: Tenant) -> Tenant:
    ready = {"active": True, "status": "ready", "createdAt": "2024-02-01"}
    tickers = [
        {
            "id": "AAPL" if not number else f"T{number:04}",
            "enabled": number < 100,
            **(ready if number < 5 else {}),
        }
        for number in range(110)
    ]
    people = [
        {"id": number, "email": f"{name}@example.com", "active": name != "eve"}
        for number, name in enumerate(("ada", "bob", "eve", "dan"), 1)
    ]
    datasets.create(tenant.pk, Declaration("ticker", TICKER, rows=Upload(tickers)))
    datasets.create(tenant.pk, Declaration("user", USER, rows=Upload(people)))
    return tenant


@pytest.mark.parametrize("row", EXAMPLES, ids=[row[0] for row in EXAMPLES])
def test_each_example_has_the_documented_result(seeded: Tenant, row: list[str]) -> None:
    text, jobs, batches, stagger, *first = row
    source = parse(text.strip("`"))
    values = tables.values_of(seeded.pk, resolve(source, tables.catalogue_of(seeded.pk)))
    expand, pacing = agree([source.options], Pacing())
    dimensions = [Dimension("value", values, values.count)]

    estimated = estimate(dimensions, expand, pacing)
    jobs_made = list(inputs({"source": "news"}, dimensions, expand))

    assert (estimated.jobs, len(jobs_made), estimated.batches) == (int(jobs), int(jobs), int(batches))
    assert pacing.stagger_ms == int(stagger)
    assert estimated.last_offset == timedelta(milliseconds=int(stagger)) * max(int(batches) - 1, 0)
    if jobs_made:
        assert jobs_made[0] == {"source": "news", "value": json.loads(first[0].strip("`"))}


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_each_refusal_has_the_documented_message(seeded: Tenant, row: list[str]) -> None:
    text, documented = row[0].strip("`"), row[1]
    if documented == "is used as it is":
        assert not looks_like(text)
        return
    with pytest.raises(DataSourceError) as refused:
        resolve(parse(text), tables.catalogue_of(seeded.pk))

    assert documented in str(refused.value)


def test_the_page_lists_exactly_the_declared_tables() -> None:
    documented = {row[0].strip("`"): row[1].split(", ") for row in rows_of("declared")}

    assert documented == {name: list(table.fields) for name, table in relations.TABLES.items()}


def _plain(value: Any) -> Iterator[str]:
    yield from (
        value if isinstance(value, tuple) else [str(value).lower() if isinstance(value, bool) else str(value)]
    )


def test_the_page_lists_exactly_the_settings_with_their_defaults() -> None:
    documented = [(row[0].strip("`"), row[1]) for row in rows_of("settings")]

    assert documented == [
        (key.path, ", ".join(_plain(getattr(SchedulerSettings(), key.attribute)))) for key in KEYS
    ]


def test_the_page_lists_the_limits_of_the_settings() -> None:
    limits = DOCUMENT.partition("### Limits")[2].partition("## Settings")[0]

    for name, default in re.findall(r"^\| `(ORCHESTRATOR_\w+)` \| ([\d,]+)(?: MB)? \|", limits, re.MULTILINE):
        number = int(default.replace(",", "")) * (1024 * 1024 if name.endswith("BYTES") else 1)
        assert getattr(settings, name) == number, name
