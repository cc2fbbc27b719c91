"""A small catalogue of tables, and data sources parsed against it."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from pipelines.data_sources import (
    Catalogue,
    FieldType,
    Query,
    Source,
    Table,
    parse,
    resolve,
)

steady = settings(deadline=None, derandomize=True, max_examples=100)
TICKER = Table({
    "id": FieldType.STRING,
    "enabled": FieldType.BOOLEAN,
    "active": FieldType.INTEGER,
    "status": FieldType.STRING,
    "price": FieldType.NUMBER,
    "createdAt": FieldType.DATETIME,
})  # fmt: skip
USER = Table({"id": FieldType.INTEGER, "email": FieldType.STRING, "active": FieldType.BOOLEAN})
CATALOGUE: Catalogue = {
    Source.DB: {"ticker": TICKER, "user": USER, "event": Table({"name": FieldType.STRING})}
}


def query(text: str) -> Query:
    return resolve(parse(text), CATALOGUE)


values = st.none() | st.integers(-3, 3)
