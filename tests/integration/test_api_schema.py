"""Authentication, lists and pages in the OpenAPI schema."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import include, path
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator

from tests.integration import notes_api

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture
def schema() -> dict[str, Any]:
    patterns = [path("api/", include(notes_api.router.urls))]
    return SchemaGenerator(patterns=patterns).get_schema(request=None, public=True)


def test_the_schema_is_built_without_a_caller_and_without_warnings(schema, capsys):
    assert set(schema["paths"]["/api/notes/"]) == {"get", "post"}
    assert not GENERATOR_STATS
    assert capsys.readouterr().err == ""


def test_the_schema_describes_both_ways_to_authenticate(schema):
    assert schema["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert schema["components"]["securitySchemes"]["session"]["in"] == "cookie"
    assert schema["paths"]["/api/notes/"]["get"]["security"] == [{"token": []}, {"session": []}]


def test_a_list_names_every_parameter_that_it_takes(schema):
    parameters = {parameter["name"] for parameter in schema["paths"]["/api/notes/"]["get"]["parameters"]}

    filters = {"name", "priority", "status", "created_after", "created_before"}
    assert parameters == filters | {"cursor", "limit", "ordering", "search"}


def test_a_single_object_takes_no_filters(schema):
    parameters = {parameter["name"] for parameter in schema["paths"]["/api/notes/{id}/"]["get"]["parameters"]}

    assert parameters == {"id", "If-None-Match"}


def test_a_page_has_links_and_results(schema):
    page = schema["components"]["schemas"]["PaginatedNoteList"]

    assert set(page["properties"]) == {"next", "previous", "results"}
