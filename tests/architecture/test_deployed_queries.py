"""The dashboard and the alert rules use metrics and labels that /metrics exposes, and every alert links to its runbook."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
import yaml

from orchestrator.metrics import CATALOGUE
from tests.architecture import tree

DEPLOY = tree.ROOT / "deploy"
#: What Grafana substitutes in queries.
GRAFANA = {"$__rate_interval": "1m", "$role": ".*"}

#: The labels of each series, by its name.
SERIES = {
    name: {*declared.labels, *labels}
    for declared in CATALOGUE.values()
    for name, labels in (
        [
            (f"{declared.query_name}_bucket", {"le"}),
            (f"{declared.query_name}_sum", set()),
            (f"{declared.query_name}_count", set()),
        ]
        if declared.kind == "histogram"
        else [(declared.query_name, set())]
    )
}


def _rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def _dashboard() -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads(
        (DEPLOY / "grafana" / "orchestrator.json").read_text(encoding="utf-8")
    )
    return dashboard


def _queries_of_the_dashboard() -> dict[str, str]:
    """Return each query as Prometheus gets it, by the title of its panel."""
    queries = {}
    for panel in _dashboard()["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for word, value in GRAFANA.items():
                query = query.replace(word, value)
            queries[f"{panel['title']}, {target['refId']}"] = query
    return queries


QUERIES = {rule["alert"]: rule["expr"] for rule in _rules()} | _queries_of_the_dashboard()


def _nodes(node: Any) -> Iterator[Any]:
    """Every part of a parsed query."""
    yield node
    for name in ("expr", "lhs", "rhs", "param", "vector_selector"):
        inner = getattr(node, name, None)
        if isinstance(inner, promql_parser.Expr):
            yield from _nodes(inner)
    for argument in getattr(node, "args", None) or ():
        yield from _nodes(argument)


def _selected(query: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the series that a query reads: the name, and the labels of its matchers."""
    for node in _nodes(promql_parser.parse(query)):
        if isinstance(node, promql_parser.VectorSelector):
            yield node.name, {matcher.name for matcher in node.matchers.matchers}


def _grouped(query: str) -> set[str]:
    """The labels by which a query groups or joins."""
    return {
        label.strip()
        for inside in re.findall(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)", query)
        for label in inside.split(",")
        if label.strip()
    }


@pytest.mark.parametrize("title", QUERIES)
def test_every_query_uses_metrics_and_labels_that_exist(title: str) -> None:
    read = list(_selected(QUERIES[title]))

    assert read or "vector" in QUERIES[title]
    assert {name for name, _ in read} <= SERIES.keys()
    assert [(name, labels) for name, labels in read if not labels <= SERIES[name]] == []
    assert _grouped(QUERIES[title]) <= set().union(*(SERIES[name] for name, _ in read))


def test_the_query_parser_sees_every_name_and_label() -> None:
    query = 'sum by (role) (rate(a_total{status="x"}[5m])) / on (role) (b > 1) or absent(c{d="e"})'

    assert list(_selected(query)) == [("a_total", {"status"}), ("b", set()), ("c", {"d"})]
    assert _grouped(query) == {"role"}


@pytest.mark.parametrize("rule", _rules(), ids=lambda rule: rule["alert"])
def test_an_alert_has_a_summary_a_description_and_a_runbook_section(rule: dict[str, Any]) -> None:
    annotations = rule["annotations"]
    path, _, section = annotations["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (tree.ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)

    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert all(len(annotations[name]) > 10 for name in ("summary", "description"))
    assert section in {heading.lower().replace(" ", "-") for heading in headings}


def test_labels_in_the_text_of_an_alert_exist() -> None:
    missing = {
        rule["alert"]: used - _result_labels(rule["expr"])
        for rule in _rules()
        if (used := set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"]))))
        - _result_labels(rule["expr"])
    }

    assert missing == {}


def _result_labels(query: str) -> set[str]:
    """Return the labels of a query's result: those that it groups by, or those of its first series."""
    grouped = re.match(r"(?:histogram_quantile\([\d.]+, )?sum by \(([^)]*)\)", query)
    if grouped:
        return {label.strip() for label in grouped[1].split(",")}
    name, _ = next(iter(_selected(query)))
    return SERIES[name]


def test_every_metric_is_used_by_a_panel_or_an_alert() -> None:
    """A metric that is neither drawn nor alerted on is not needed."""
    read = {name for query in QUERIES.values() for name, _ in _selected(query)}

    assert {
        declared.name
        for declared in CATALOGUE.values()
        if not read
        & {declared.query_name, *(f"{declared.query_name}_{part}" for part in ("bucket", "sum", "count"))}
    } == set()


def test_prometheus_loads_the_rules_and_scrapes_the_metrics() -> None:
    prometheus = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))

    assert [(DEPLOY / "prometheus" / name).is_file() for name in prometheus["rule_files"]] == [True]
    assert [job["metrics_path"] for job in prometheus["scrape_configs"]] == ["/metrics"]
    assert all(len(job["static_configs"][0]["targets"]) == 1 for job in prometheus["scrape_configs"])


def test_the_dashboard_can_be_loaded_and_its_panels_do_not_overlap() -> None:
    dashboard = _dashboard()
    panels = dashboard["panels"]
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]

    assert len({panel["id"] for panel in panels}) == len(panels) > 20
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    assert {variable["name"] for variable in dashboard["templating"]["list"]} == {"datasource", "role"}


def test_grafana_finds_the_data_source_and_the_dashboard() -> None:
    folder = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text(encoding="utf-8"))[
        "datasources"
    ]
    (provider,) = yaml.safe_load((folder / "dashboards" / "orchestrator.yml").read_text(encoding="utf-8"))[
        "providers"
    ]

    assert source["uid"] == _dashboard()["templating"]["list"][0]["current"]["value"]
    assert provider["type"] == "file"
