"""Rows of a dataset: added, replaced, read in pages, and uploaded as files."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from tests.answers import problem, version_of
from tests.integration.datasets_api.ticker import AAPL, ROWS, TICKER, faults, make_dataset


def keys(client: Any) -> list[str]:
    return [row["key"] for row in client.get(ROWS).json()["results"]]


def test_rows_are_added_changed_and_kept_by_their_id(api: Any) -> None:
    client = api()
    make_dataset(client, rows=[AAPL])

    filled = client.post(ROWS, {"rows": [{**AAPL, "price": 2}, {"id": "MSFT"}]})
    again = client.post(ROWS, [{**AAPL, "price": 2.0}, {"id": "MSFT"}])

    assert filled.json() == {"added": 1, "updated": 1, "removed": 0, "rows": 2, "version": 2}
    assert again.json() == {"added": 0, "updated": 0, "removed": 0, "rows": 2, "version": 2}
    assert keys(client) == ["AAPL", "MSFT"]
    assert version_of(client.get(TICKER)) == version_of(filled) == "2"


def test_replacing_removes_missing_rows_and_keeps_the_order_of_the_others(api: Any) -> None:
    client = api()
    make_dataset(client, rows=[{"id": name} for name in "abc"])

    replaced = client.post(f"{ROWS}?replace=true", {"rows": [{"id": name} for name in "dca"]})

    assert replaced.json() == {"added": 1, "updated": 0, "removed": 1, "rows": 3, "version": 2}
    assert keys(client) == ["a", "c", "d"]
    assert client.post(f"{ROWS}?replace=true", {"rows": []}).json()["rows"] == 0


def test_rows_without_an_id_are_added_and_replaced_in_their_order(api: Any) -> None:
    client = api()
    make_dataset(client, fields={"city": "string"}, rows=[{"city": "Rome"}, {"city": "Oslo"}])

    assert client.post(ROWS, {"rows": [{"city": "Rome"}]}).json()["rows"] == 3
    assert client.post(f"{ROWS}?replace=true", {"rows": [{"city": "Bern"}]}).json()["removed"] == 2
    assert [row["data"] for row in client.get(ROWS).json()["results"]] == [{"city": "Bern"}]


def test_rows_with_errors_are_refused_with_every_path_and_nothing_is_stored(api: Any) -> None:
    client = api()
    make_dataset(client, rows=[AAPL])
    rows = [
        {"id": "a"},
        {"id": "b", "enabled": "yes"},
        5,
        {"price": 1},
        {"id": "a", "x; --": 1},
        {"id": "a"},
        {"id": "n" * 201},
    ]

    errors = faults(client.post(ROWS, {"rows": rows}))

    assert errors.keys() == {
        "rows[1].enabled",
        "rows[2]",
        "rows[3].id",
        "rows[4]",
        "rows[5].id",
        "rows[6].id",
    }
    assert errors["rows[1].enabled"] == "must be true or false"
    assert keys(client) == ["AAPL"]


def test_a_body_without_a_list_of_rows_is_refused(api: Any) -> None:
    client = api()
    make_dataset(client, rows=[AAPL])

    for body in ({"texts": [[2, {"id": "A"}]]}, {"texts": 5}, {"rows": [], "lines": []}, {"rows": {}}, {}):
        assert client.post(f"{ROWS}?replace=true", body).status_code == 400, body
    assert keys(client) == ["AAPL"]


def test_at_most_fifty_errors_of_rows_are_listed(api: Any) -> None:
    client = api()
    make_dataset(client)

    errors = problem(client.post(ROWS, {"rows": [{}] * 1_000}), 400, "invalid_rows")["errors"]

    assert len(errors) == 51
    assert "first 50" in errors[-1]["message"]


def test_pages_of_rows_follow_one_another(api: Any) -> None:
    client = api()
    make_dataset(client, rows=[{"id": f"{place:03}"} for place in range(25)])
    viewer, seen, address = api("viewer"), [], f"{ROWS}?limit=10"

    while address:
        page = viewer.get(address).json()
        seen += [row["key"] for row in page["results"]]
        address = page["next"]

    assert seen == [f"{place:03}" for place in range(25)]
    problem(viewer.get(f"{ROWS}?enabled=true"), 400, "validation_failed")


def test_a_row_is_deleted_by_its_key_whatever_characters_it_has(api: Any) -> None:
    client = api()
    make_dataset(client, rows=[{"id": "a/b"}, {"id": "ü x"}, {"id": "c"}])

    assert client.delete(f"{ROWS}a%2Fb/").status_code == 204
    assert client.delete(f"{ROWS}%C3%BC%20x/").status_code == 204
    problem(client.delete(f"{ROWS}a%2Fb/"), 404, "not_found")
    assert keys(client) == ["c"]


def test_values_of_csv_get_the_types_of_their_fields(api: Any) -> None:
    client = api()
    make_dataset(client)
    text = '\ufeffid,enabled,price,createdAt\r\n"A ""B"", C",TRUE,1.50,2024-01-01T00:00:00+02:00\r\n\r\n=1+1,,,\r\n'

    filled = client.generic("POST", ROWS, text.encode(), "text/csv")

    assert filled.json()["added"] == 2
    first, second = client.get(ROWS).json()["results"]
    assert first["data"] == {
        "id": 'A "B", C',
        "enabled": True,
        "price": 1.5,
        "createdAt": "2023-12-31T22:00:00Z",
    }
    assert second["data"] == {"id": "=1+1", "enabled": None, "price": None, "createdAt": None}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("\n", "line 1 must name the fields"),
        ("id,id\n1,2\n", "line 1 names the field 'id' twice"),
        (",".join(map(str, range(201))), "line 1 names more than 200 fields"),
        ("id,price\na,1\nb\n", "line 3 has 1 value, and the header 2 values"),
        ('id,price\na,"1\n2\n', "line 2 is not CSV"),
        (b"id,price\n\xff,1\n", "not UTF-8"),
        ("id\n" + "x" * 140_000 + "\n", "line 2"),
    ],
)
def test_the_error_of_an_unreadable_csv_names_the_line(api: Any, text: Any, error: str) -> None:
    client = api()
    make_dataset(client)

    refused = client.generic("POST", ROWS, text.encode() if isinstance(text, str) else text, "text/csv")

    assert error in problem(refused, 400, "invalid_file")["detail"]


def test_the_error_of_a_csv_value_names_path_and_line(api: Any) -> None:
    client = api()
    make_dataset(client)

    refused = client.generic("POST", ROWS, 'id,price\n"a\nb",1\nc,much\n,1\n', "text/csv")

    assert faults(refused) == {
        "rows[1].price": "must be a number (line 4)", "rows[2].id": "is missing: it identifies the row (line 5)",
    }  # fmt: skip
    header = client.generic("POST", ROWS, "ID,price\na,1\nb,2\n", "text/csv")
    assert (
        list(faults(header).values()) == ["the field id is missing: it identifies the rows (line 1)"]
        or len(problem(header, 400, "invalid_rows")["errors"]) == 2
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("r.csv", b"id,price\nx,1\n"),
        ("r.json", b'[{"id": "x", "price": 1}]'),
        ("R.JSON", b'{"rows": [{"id": "x"}]}'),
    ],
)
def test_an_uploaded_file_is_read_by_the_ending_of_its_name(api: Any, name: str, content: bytes) -> None:
    client = api()
    make_dataset(client)

    filled = client.post(
        f"{ROWS}?replace=true", {"file": SimpleUploadedFile(name, content)}, format="multipart"
    )

    assert filled.status_code == 200, filled.content
    assert keys(client) == ["x"]


def test_a_form_without_a_valid_file_is_refused(api: Any) -> None:
    client = api()
    make_dataset(client)

    assert faults(client.post(ROWS, {"other": "1"}, format="multipart"), "validation_failed").keys() == {
        "file",
        "other",
    }
    program_file = SimpleUploadedFile("rows.exe", b"MZ")
    assert faults(
        client.post(ROWS, {"file": program_file}, format="multipart"), "validation_failed"
    ).keys() == {"file"}
    problem(
        client.post(ROWS, {"file": SimpleUploadedFile("a.json", b"{")}, format="multipart"),
        400,
        "invalid_file",
    )
    problem(client.generic("POST", ROWS, b"\x00", "application/zip"), 415, "unsupported_media_type")
