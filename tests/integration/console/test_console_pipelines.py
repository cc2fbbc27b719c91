"""The pages of pipelines: definitions, the form that starts a run, copies and restored versions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agents import configuration
from agents.models import Agent
from pipelines import submission, versions
from pipelines.models import Pipeline, PipelineRun
from tenants.context import system_scope, tenant_scope
from tenants.models import Tenant
from tests.browsing import visible_text
from tests.console_user import Person, refusal_notice, send_form
from tests.engine import Engine
from tests.forms import Form, forms_of
from tests.page_queries import MOST
from tests.questions import ARTICLE
from tests.registry import temporary_agent

PIPELINES = "/pipelines/"
SCHEMA = {
    "type": "object",
    "required": ["topic"],
    "properties": {
        "topic": {"type": "string", "title": "What it is about", "minLength": 3},
        "tone": {"enum": ["dry", "warm", 7]},
        "words": {"type": "integer", "description": "How long it is to be."},
        "sources": {"type": "array", "items": {"type": "string"}},
        "quick": {"type": "boolean"},
    },
}


@pytest.fixture
def article(engine: Engine, tenant: Tenant) -> Pipeline:
    """A pipeline of three steps."""
    engine.serve(tenant)
    result: Pipeline = versions.save(
        tenant.pk, {**ARTICLE, "params": {"tone": "warm"}}, actor="user:ann"
    ).pipeline
    return result


@pytest.fixture
def scribe(database: None) -> Iterator[None]:
    """An agent with an input schema."""
    with temporary_agent("scribe", input_schema=SCHEMA):
        yield


@pytest.fixture
def letter(scribe: None, engine: Engine, tenant: Tenant) -> Pipeline:
    """A pipeline of that agent whose second step has its own topic."""
    engine.serve(tenant)
    steps = [
        {"id": "write", "agent_role": "scribe"},
        {"id": "check", "agent_role": "scribe", "params": {"topic": "the article"}},
    ]
    definition = {
        "key": "letter",
        "name": "Letter",
        "params": {"tone": "warm", "house": "Northern"},
        "steps": steps,
    }
    result: Pipeline = versions.save(tenant.pk, definition, actor="test").pipeline
    return result


def start_form(who: Person, key: str = "letter") -> Form:
    return forms_of(who.get(f"{PIPELINES}{key}/start/"))["start"]


def field_names(who: Person, key: str = "letter") -> dict[str, str]:
    """Return the name of the form field of each parameter."""
    page = who.get(f"{PIPELINES}{key}/start/")
    return {each.name: field for field, each in page.context["form"].parameters.items()}


def newest_run(tenant: Tenant) -> PipelineRun:
    with tenant_scope(tenant.pk):
        result: PipelineRun = PipelineRun.objects.select_related("version__pipeline").order_by("-started_at")[
            0
        ]
    return result


def test_the_list_links_pipelines_and_shows_their_last_run(
    article: Pipeline, engine: Engine, tenant: Tenant, ann: Person
) -> None:
    assert "none recently" in visible_text(ann.get(PIPELINES))
    submission.start_run(tenant.pk, "article", submission.NewRun(), actor="test")

    page = ann.get(PIPELINES)

    assert "Article" in visible_text(page)
    assert re.search(r"(now|ago) running", visible_text(page))
    assert "/pipelines/article/start/" in page.content.decode()
    assert "No pipelines match." in visible_text(ann.get(f"{PIPELINES}?search=nothing"))
    assert "New pipeline" not in visible_text(page), "operators make none"


def test_a_pipeline_is_shown_with_its_picture_steps_versions_runs_and_schedules(
    article: Pipeline, tenant: Tenant, boss: Person
) -> None:
    submission.start_run(tenant.pk, "article", submission.NewRun(params={"title": "Bees"}), actor="test")
    versions.save(tenant.pk, {**ARTICLE, "description": "Written by two."}, actor="token:planner")

    page = boss.get(f"{PIPELINES}article/")

    text = visible_text(page)
    assert 'class="pipeline-picture"' in page.content.decode()
    assert "requires approval" in text
    assert "Bees" in text
    assert "planner (token)" in text
    assert f"/admin/pipelines/pipeline/{article.pk}/change/" in page.content.decode()
    assert "This is version 1; the latest is 2." in visible_text(boss.get(f"{PIPELINES}article/?version=1"))
    assert boss.browser.get(f"{PIPELINES}article/?version=9").status_code == 404
    assert boss.browser.get(f"{PIPELINES}nothing/").status_code == 404


def test_the_start_form_has_a_field_for_each_parameter_of_the_schema(letter: Pipeline, ann: Person) -> None:
    form = ann.get(f"{PIPELINES}letter/start/").context["form"]

    fields = {form.parameters[name].name: form.fields[name] for name in form.parameters}
    assert next(iter(fields)) == "topic", "what must be given comes first"
    assert {name: field.required for name, field in fields.items()} == {
        "topic": True, "tone": False, "words": False, "sources": False, "quick": False, "house": False,
    }  # fmt: skip
    assert fields["topic"].label == "What it is about"
    assert fields["words"].help_text == "How long it is to be."
    assert [words for _, words in fields["tone"].choices] == ["\u2013", "dry", "warm", "7"]
    assert (fields["tone"].initial, fields["house"].initial) == ("warm", "Northern")


def test_a_run_starts_with_form_values_and_pipeline_defaults(
    letter: Pipeline, tenant: Tenant, ann: Person
) -> None:
    names = field_names(ann)
    filled = {
        names["topic"]: "Bees in the city",
        names["tone"]: "2",
        names["words"]: "300",
        names["sources"]: '["a", "b"]',
        names["quick"]: "1",
        "more": '{"client": "Acme"}',
        "content": "Write about them.",
        "priority": "urgent",
    }

    answer = start_form(ann).send(ann.browser, **filled)

    run = newest_run(tenant)
    assert answer["Location"].startswith(f"/runs/{run.pk}/")
    assert "The run has started." in visible_text(ann.get(answer["Location"]))
    assert run.params == {
        "topic": "Bees in the city", "tone": 7, "words": 300, "sources": ["a", "b"], "quick": False, "client": "Acme",
        "house": "Northern",
    }  # fmt: skip
    assert (run.input, run.priority, run.created_by) == ({"content": "Write about them."}, 1, "user:ann")


def test_invalid_params_are_reported_at_their_field_and_kept(
    letter: Pipeline, tenant: Tenant, ann: Person
) -> None:
    names = field_names(ann)

    answer = start_form(ann).send(ann.browser, **{names["topic"]: "ab", names["words"]: "300"})

    assert answer.status_code == 400
    form = answer.context["form"]
    assert form.errors.keys() == {names["topic"]}
    assert "too short" in str(form.errors)
    assert 'value="300"' in answer.content.decode()
    broken = start_form(ann).send(ann.browser, **{names["topic"]: "Bees", names["sources"]: "[1,"})
    assert broken.context["form"].errors.keys() == {names["sources"]}
    with tenant_scope(tenant.pk):
        assert not PipelineRun.objects.exists()


def test_a_form_sent_twice_starts_one_run(letter: Pipeline, tenant: Tenant, ann: Person) -> None:
    form, topic = start_form(ann), field_names(ann)["topic"]
    form.send(ann.browser, **{topic: "Bees"})

    form.send(ann.browser, **{topic: "Bees"})

    with tenant_scope(tenant.pk):
        assert PipelineRun.objects.count() == 1


def test_a_form_of_an_older_version_is_refused(letter: Pipeline, tenant: Tenant, ann: Person) -> None:
    form, topic = start_form(ann), field_names(ann)["topic"]
    versions.save(
        tenant.pk,
        {"key": "letter", "name": "Letter", "steps": [{"id": "a", "agent_role": "scribe"}]},
        actor="test",
    )

    answer = form.send(ann.browser, **{topic: "Bees"})

    assert answer.status_code == 409
    assert "The pipeline has changed since you loaded the page" in visible_text(answer)
    assert 'value="Bees"' in answer.content.decode()
    with tenant_scope(tenant.pk):
        assert not PipelineRun.objects.exists()


def test_an_admin_copies_a_pipeline(article: Pipeline, tenant: Tenant, boss: Person, ann: Person) -> None:
    form = forms_of(boss.get(f"{PIPELINES}article/copy/"))["copy"]
    assert form.fields["key"] == ["article-copy"]

    taken = form.send(boss.browser, key="article")
    assert taken.status_code == 409
    answer = form.send(boss.browser, key="report", name="Report")

    assert "Created: Report" in visible_text(boss.get(answer["Location"]))
    with tenant_scope(tenant.pk):
        copy = Pipeline.objects.get(key="report")
        (own,), (theirs,) = (
            list(each.versions.values_list("definition", flat=True)) for each in (article, copy)
        )
    assert {**own, "key": "report", "name": "Report"} == theirs
    assert ann.browser.get(f"{PIPELINES}article/copy/").status_code == 404
    assert send_form(ann, form, key="stolen").status_code == 404


def test_an_admin_restores_a_version_unless_a_newer_one_exists(
    article: Pipeline, tenant: Tenant, boss: Person, ann: Person
) -> None:
    versions.save(tenant.pk, {**ARTICLE, "description": "Second."}, actor="test")
    form = forms_of(boss.get(f"{PIPELINES}article/"))["restore"]
    assert forms_of(ann.get(f"{PIPELINES}article/"))["restore"].buttons == []
    assert "needs the role admin" in refusal_notice(send_form(ann, form, action="restore:1"), 403)

    answer = form.send(boss.browser, ("action", "restore:1"))

    assert "Version 1 was restored as a new version" in visible_text(boss.get(answer["Location"]))
    with tenant_scope(tenant.pk):
        assert Pipeline.objects.get(key="article").latest == 3
        assert Pipeline.objects.get(key="article").description == ""
    assert form.send(boss.browser, ("action", "restore:1")).status_code == 412, (
        "the page shows another newest one"
    )


def test_an_operator_pauses_and_resumes(
    article: Pipeline, ann: Person, person: Callable[..., Person]
) -> None:
    page = forms_of(ann.get(f"{PIPELINES}article/"))["actions"].send(ann.browser, ("action", "pause"))
    assert "paused" in visible_text(ann.get(page["Location"]))
    assert "paused" in visible_text(ann.get(PIPELINES))
    vic = person("vic", role="viewer")
    assert forms_of(vic.get(f"{PIPELINES}article/"))["actions"].buttons == []
    assert vic.browser.get(f"{PIPELINES}article/start/").status_code == 404

    forms_of(ann.get(f"{PIPELINES}article/"))["actions"].send(ann.browser, ("action", "resume"))

    assert "paused" not in visible_text(ann.get(PIPELINES))


def test_pipelines_of_another_tenant_are_not_shown(
    article: Pipeline, other_tenant: Tenant, person: Callable[..., Person]
) -> None:
    otto = person("otto", other_tenant, role="admin")

    assert "There are no pipelines yet." in visible_text(otto.get(PIPELINES))
    for page in ("", "start/", "copy/"):
        assert otto.browser.get(f"{PIPELINES}article/{page}").status_code == 404


def test_the_pages_need_few_queries_for_any_number_of_rows(
    article: Pipeline, tenant: Tenant, boss: Person, queries_of: Callable[..., list[str]]
) -> None:
    for number in range(12):
        versions.save(tenant.pk, {**ARTICLE, "key": f"article-{number}"}, actor="test")
        versions.save(tenant.pk, ARTICLE, actor="test")
        submission.start_run(tenant.pk, "article", submission.NewRun(), actor="test")

    for address in (
        PIPELINES,
        f"{PIPELINES}article/",
        f"{PIPELINES}article/start/",
        f"{PIPELINES}article/copy/",
    ):
        queries = queries_of(boss, address)
        assert len(queries) <= MOST - 1, (address, queries)


@pytest.mark.parametrize(
    ("schema", "typed", "value"),
    [
        ({"type": ["integer", "null"]}, "7", 7),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": ["string", "integer"]}, '"x"', "x"),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"enum": [None, "b"]}, "1", "b"),
        ({"type": 7, "title": 3, "description": []}, "12", 12),
        ("nothing of a schema", "true", True),
    ],
    ids=[
        "an integer or nothing",
        "a number",
        "of two kinds",
        "an object",
        "a choice",
        "a spoilt schema",
        "no schema",
    ],
)
def test_every_schema_gets_a_form_field(
    schema: Any, typed: str, value: Any, scribe: None, engine: Engine, tenant: Tenant, ann: Person
) -> None:
    with system_scope():
        Agent.objects.filter(role="scribe").update(input_schema={"properties": {"x": schema}})
    configuration.forget()
    engine.serve(tenant)
    versions.save(
        tenant.pk,
        {"key": "letter", "name": "L", "steps": [{"id": "a", "agent_role": "scribe"}]},
        actor="test",
    )

    start_form(ann).send(ann.browser, **{field_names(ann)["x"]: typed})

    assert json.loads(json.dumps(newest_run(tenant).params)) == {"x": value}
