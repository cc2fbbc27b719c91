"""The usage page: totals that agree for every grouping, budgets, and the same rows as a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from console import usage as usage_page
from console.page import csv_of
from console.usage import UsageFilter
from tenants.context import tenant_scope
from tenants.identifiers import uuid7
from tenants.models import Tenant, UsageEntry
from tests.browsing import visible_text
from tests.console_user import Person
from tests.spending import make_budget

USAGE = "/usage/"


def spend(tenant: Tenant, role: str, cost: str, *, days_ago: int = 0, **fields: int) -> None:
    """Record the usage of one run in the ledger."""
    with tenant_scope(tenant.pk):
        UsageEntry.objects.create(
            tenant=tenant, day=datetime.now(UTC).date() - timedelta(days=days_ago), agent_role=role, activity_id=uuid7(),
            run_id=uuid7(), dollars=Decimal(cost), runs=1, **fields,
        )  # fmt: skip


@pytest.fixture
def recorded_usage(tenant: Tenant, other_tenant: Tenant) -> None:
    spend(tenant, "qa", "1.25", input_tokens=100, output_tokens=10)
    spend(tenant, "qa", "0.25", days_ago=1, input_tokens=50)
    spend(tenant, "dev", "3", days_ago=1, output_tokens=5)
    spend(tenant, "dev", "9", days_ago=40)
    spend(other_tenant, "qa", "77")


def test_totals_agree_for_every_grouping(recorded_usage: None, ann: Person) -> None:
    page = ann.get(USAGE)

    usage = page.context["usage"]
    assert usage.total.cost == Decimal("4.5")
    assert len(usage.days) == 30
    for lines in (usage.days, usage.roles, usage.pipelines):
        assert sum(line.cost for line in lines) == usage.total.cost
        assert sum(line.runs for line in lines) == usage.total.runs == 3
    assert [(line.name, line.cost) for line in usage.roles] == [("dev", Decimal(3)), ("qa", Decimal("1.5"))]
    text = visible_text(page)
    assert "$4.50 spent" in text
    assert "maximum: $3.25" in text
    assert "77" not in text


def test_unlisted_rows_are_summed_as_all_others(
    recorded_usage: None, tenant: Tenant, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_page, "MOST_LINES", 1)

    usage = ann.get(USAGE).context["usage"]

    assert [(line.name, line.cost, line.runs) for line in usage.roles] == [
        ("dev", Decimal(3), 1),
        ("all others", Decimal("1.5"), 2),
    ]
    assert [line.name for line in usage.pipelines] == ["no pipeline"]


def test_the_chart_has_a_bar_for_each_day_with_usage_and_a_table(recorded_usage: None, ann: Person) -> None:
    content = ann.get(USAGE).content.decode()

    picture = content.split('aria-label="Cost per day')[1].split("</svg>")[0]
    assert picture.count("<rect") == 2
    assert 'height="40' in picture
    assert "Show as a table" in content


def test_days_and_roles_are_query_parameters(recorded_usage: None, ann: Person) -> None:
    today = datetime.now(UTC).date()

    page = ann.get(f"{USAGE}?from={today - timedelta(days=60)}&to={today}&role=dev")

    assert page.context["usage"].total.cost == Decimal(12)
    assert "No usage in this period." in visible_text(ann.get(f"{USAGE}?role=nobody"))


@pytest.mark.parametrize(
    ("query", "remark"),
    [
        ({"from": "yesterday"}, "Enter days as YYYY-MM-DD."),
        ({"from": "2026-05-02", "to": "2026-05-01"}, "must not be after"),
        ({"from": "2020-01-01", "to": "2026-01-01"}, "at most 366 days"),
        ({"to": "0001-01-01"}, "Enter days as YYYY-MM-DD."),
    ],
)
def test_invalid_days_are_reported(query: dict[str, str], remark: str) -> None:
    wanted = UsageFilter.read(query)

    assert remark in wanted.remark
    assert len(wanted.days) == 30


def test_budgets_show_their_use(recorded_usage: None, tenant: Tenant, ann: Person) -> None:
    make_budget(tenant, "5.00", name="All of it")
    make_budget(tenant, "1.00", name="Quality", agent_role="qa")

    page = ann.get(USAGE)

    lines = {line.budget.name: (line.percent, line.tone) for line in page.context["usage"].budgets}
    assert lines == {"All of it": ("270%", "bad"), "Quality": ("150%", "bad")}
    assert 'class="meter bad"' in page.content.decode()


def test_the_file_holds_what_the_table_shows(recorded_usage: None, ann: Person) -> None:
    answer = ann.get(f"{USAGE}export/roles/")

    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert "attachment" in answer["Content-Disposition"]
    rows = list(csv.reader(io.StringIO(answer.content.decode())))
    assert rows[0][0] == "role"
    assert [(row[0], row[4]) for row in rows[1:]] == [("dev", "3"), ("qa", "1.5")]
    assert len(list(csv.reader(io.StringIO(ann.get(f"{USAGE}export/days/").content.decode())))) == 31
    assert ann.browser.get(f"{USAGE}export/secrets/").status_code == 404


def test_no_cell_of_a_file_is_a_formula() -> None:
    answer = csv_of(
        "x", ("name", "number"), [("=HYPERLINK(1)", -5), ("@cmd", Decimal("-1.5")), ("fine", None)]
    )

    assert answer.content.decode().splitlines() == ["name,number", "'=HYPERLINK(1),-5", "'@cmd,-1.5", "fine,"]


def test_usage_of_another_tenant_is_not_shown(
    recorded_usage: None, other_tenant: Tenant, ann: Person
) -> None:
    assert ann.browser.get(f"{USAGE}?tenant={other_tenant.slug}").status_code == 404
    assert ann.browser.get(f"{USAGE}export/days/?tenant={other_tenant.slug}").status_code == 404


def test_the_page_needs_few_queries_for_a_year(
    recorded_usage: None, tenant: Tenant, ann: Person, queries_of: Callable[..., list[str]]
) -> None:
    today = datetime.now(UTC).date()

    queries = queries_of(ann, f"{USAGE}?from={today - timedelta(days=365)}&to={today}")

    assert len(queries) <= 12, queries
