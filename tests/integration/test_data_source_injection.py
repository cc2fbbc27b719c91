"""Hostile data sources, names and addresses are refused, and nothing of them becomes part of SQL."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from pipelines import datasets, tables
from pipelines.data_sources import (
    DataSourceError,
    Operator,
    ParamsError,
    check,
    looks_like,
    parse,
    read_params,
    resolve,
)
from pipelines.data_sources.query import Comparison
from pipelines.datasets import Declaration, Upload
from pipelines.tables import relations
from tenants.context import APP
from tenants.models import Tenant
from tests.cases import in_one_test

FIELDS = {"id": "string", "enabled": "boolean", "price": "integer"}

#: Invalid data sources, with the hostile text in different parts.
REFUSED = [
    # SQL
    "db:ticker; DROP TABLE pipelines_dataset:all:id",
    "db:ticker'--:all:id",
    "db:pg_catalog.pg_user:all:usename",
    "db:ticker:' OR '1'='1:id",
    "db:ticker:1 OR 1=1:id",
    "db:ticker:1;SELECT pg_sleep(10):id",
    "db:ticker:all:id FROM tenants_apitoken",
    "db:ticker:all:id,secret_hash",
    "db:ticker:all:(SELECT 1)",
    "db:ticker:all:*",
    "db:ticker:all:id?enabled=true OR 1=1",
    "db:ticker:all:id?enabled=true'--",
    "db:ticker:all:id?1=1",
    "db:ticker:all:id?price=1%20OR%201=1",
    "db:ticker:all:id?price=1;DROP TABLE x",
    "db:ticker:all:id?limit=1%20OFFSET%205",
    "db:ticker:all:id?limit=-1",
    "db:ticker:all:id?batchSize=1e9",
    # Lookups that follow relations or patterns
    "db:ticker:all:id__in",
    "db:ticker:all:dataset__tenant__slug",
    "db:ticker:all:id?id__startswith=A",
    "db:ticker:all:id?tenant__api_tokens__secret_hash__regex=.",
    "db:ticker:all:id?pk=1",
    "db:ticker:all:id?tenant_id=00000000-0000-0000-0000-000000000000",
    "db:ticker__rows:all:id",
    # JSON operators
    'db:ticker:all:id?filter={"$where":"sleep(1000)"}',
    'db:ticker:all:id?filter={"id":{"$regex":".*"}}',
    'db:ticker:all:id?filter={"id":{"$gt":""},"id":{"$ne":null}}',
    'db:ticker:all:id?filter={"$or":[{"id":"a"},{"id":"b"}]}',
    'db:ticker:all:id?filter={"id":{"$eq":{"$gt":""}}}',
    'db:ticker:all:id?filter={"id__in":["a"]}',
    'db:ticker:all:id?filter={"price":{"$in":["1 OR 1=1"]}}',
    'db:ticker:all:id?filter={"enabled":{"$gt":false}}',
    'db:ticker:all:id?filter={"__proto__":{"polluted":true}}',
    'db:ticker:all:id?filter={"price":1e999}',
    'db:ticker:all:id?filter={"price":NaN}',
    "db:ticker:all:id?filter=" + "[" * 3_000,
    # Paths
    "file:../../etc/passwd:all:id",
    "file:..%2f..%2fetc%2fpasswd:all:id",
    "file:/etc/passwd:all:id",
    "file:ticker.csv:all:id",
    "file:ticker\x00:all:id",
    "cache:orchestrator\\:tokens:all:id",
    "api:169.254.169.254:all:id",
    # Formulas, templates, commands
    "db:ticker:=cmd|'/C calc'!A0:id",
    "db:ticker:{{7*7}}:id",
    "db:ticker:${jndi.ldap}:id",
    "db:ticker:$(reboot):id",
    "db:ticker:`id`:id",
    "db:ticker:<script>alert(1)</script>:id",
    "db:ticker:%00:id",
    "db:ticker:%ff:id",
    "db:ticker:\u202e:id",
    "DB:ticker:all:id",
    "db:ticker:all:id?" + "&".join(f"f{number}=1" for number in range(300)),
    "db:" + "a" * 5_000 + ":all:id",
]

#: Valid texts that would be dangerous only inside a statement; they are compared as text.
HARMLESS = [
    "'",
    '"',
    "%",
    "_",
    "\\",
    "' OR '1'='1",
    "1; DROP TABLE x",
    "%s",
    "{}",
    "$1",
    "\ufeff",
    "😀",
    "NULL",
    "true",
]


@pytest.fixture
def ticker(tenant: Tenant) -> Tenant:
    rows = [{"id": f"T{number}", "enabled": True, "price": number} for number in range(3)]
    datasets.create(tenant.pk, Declaration("ticker", FIELDS, rows=Upload(rows)))
    return tenant


@in_one_test("text", REFUSED)
def test_hostile_sources_are_refused_quickly_and_without_a_statement(ticker: Tenant, text: str) -> None:
    catalogue = tables.catalogue_of(ticker.pk)

    with CaptureQueriesContext(connections[APP]) as statements:
        started = time.thread_time()
        with pytest.raises(DataSourceError) as error:
            resolve(parse(text), catalogue)
        seconds = time.thread_time() - started

    assert len(statements) == 0
    assert error.value.errors
    assert seconds < 0.05


def test_parameters_with_hostile_sources_are_refused_with_their_paths() -> None:
    params = {f"p{number}": text for number, text in enumerate(REFUSED) if looks_like(text)}

    with pytest.raises(ParamsError) as error:
        read_params(params)

    assert len({fault.path for fault in error.value.errors}) > 40


def test_hostile_looking_keys_are_compared_as_text(ticker: Tenant) -> None:
    rows = [
        {"id": f"H{number}" if number % 2 else text, "enabled": None, "price": None}
        for number, text in enumerate(HARMLESS)
    ]
    datasets.create(ticker.pk, Declaration("odd", FIELDS, rows=Upload(rows)))
    catalogue = tables.catalogue_of(ticker.pk)

    for number, text in enumerate(HARMLESS):
        encoded = "".join(f"%{byte:02X}" for byte in text.encode())
        values = list(tables.values_of(ticker.pk, resolve(parse(f"db:odd:{encoded}:id,price"), catalogue)))
        assert values == ([] if number % 2 else [{"id": text, "price": None}]), text


def test_no_statement_contains_text_of_a_data_source(ticker: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text without its parameters contains neither names of fields nor values."""
    texts: list[str] = []
    run = relations._run

    def record_and_run(query: Any, text: Any, parameters: Any) -> Any:
        texts.append(text.as_string())
        return run(query, text, parameters)

    monkeypatch.setattr(relations, "_run", record_and_run)
    text = 'db:ticker:SENTINEL:id,price?enabled=true&filter={"price":{"$in":[424242,null]},"id":{"$ne":"MARKER"}}'
    values = tables.values_of(ticker.pk, resolve(parse(text), tables.catalogue_of(ticker.pk)))

    assert (list(values), values.count) == ([], 0)
    assert len(texts) == 2
    for statement in texts:
        assert not [
            part
            for part in ("SENTINEL", "MARKER", "424242", "enabled", "price", "ticker")
            if part in statement
        ]


def test_a_comparison_with_an_unknown_field_runs_no_statement(ticker: Tenant) -> None:
    query = resolve(parse("db:ticker:all:id"), tables.catalogue_of(ticker.pk))
    forged = replace(query, comparisons=(Comparison("id) OR (true", Operator.EQ, "x"),))

    with CaptureQueriesContext(connections[APP]) as statements, pytest.raises(KeyError):
        list(tables.values_of(ticker.pk, forged))

    assert not [each for each in statements if "pipelines_datasetrow" in each["sql"]]


def test_hostile_names_in_rows_are_refused_and_values_are_stored_as_text(ticker: Tenant, api: Any) -> None:
    client = api()
    place = "/api/v1/datasets/ticker/rows/"

    for name in ("id; DROP TABLE x", "id__in", "$where", "__proto__", "tenant_id"):
        refused = client.post(place, {"rows": [{"id": "x", name: 1}]})
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_rows"), name
    accepted = client.generic(
        "POST", place, 'id,price\n"=HYPERLINK(""http://x"")",1\n@SUM(1),2\n', "text/csv"
    )
    assert accepted.status_code == 200, accepted.content
    keys = [row["key"] for row in client.get(place).json()["results"]]
    assert keys[-2:] == ['=HYPERLINK("http://x")', "@SUM(1)"]
    for name in ("../../x", "ticker/../user", "ticker%2f..", "t' OR '1'='1"):
        assert client.get(f"/api/v1/datasets/{name}/").status_code == 404
    assert check(parse("db:ticker:all:id"), tables.catalogue_of(ticker.pk)) == []
