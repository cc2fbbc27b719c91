"""The command that loads pipelines from files."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from pipelines.models import PipelineRun, PipelineVersion
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.cases import in_one_test
from tests.integration.pipelines_api.definitions import EXAMPLE

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def load(*arguments: str) -> str:
    out = io.StringIO()
    call_command("load_pipeline", *arguments, stdout=out)
    return out.getvalue()


def test_a_pipeline_file_is_loaded_as_a_new_version(acme: Tenant) -> None:
    assert load(str(EXAMPLE), "--tenant", "acme") == "pipeline content-brief version 1\n"
    assert load(str(EXAMPLE)) == "pipeline content-brief version 2\n"
    with tenant_scope(acme.pk):
        assert set(PipelineVersion.objects.values_list("created_by", flat=True)) == {"command:load_pipeline"}


def test_with_several_tenants_the_command_needs_a_name(acme: Tenant, other_tenant: Tenant) -> None:
    with pytest.raises(CommandError, match="acme, globex"):
        load(str(EXAMPLE))
    with pytest.raises(CommandError, match="no tenant 'nobody'"):
        load(str(EXAMPLE), "--tenant", "nobody")
    assert load(str(EXAMPLE), "--tenant", "globex").startswith("pipeline content-brief")


def test_every_error_of_a_file_is_on_its_own_line(acme: Tenant, tmp_path: Path) -> None:
    file, errors = tmp_path / "broken.yaml", io.StringIO()
    file.write_text(
        "key: flow\nname: Flow\nsteps:\n  - id: a\n    agent_role: none\n  - id: a\n    agent_role: qa\n    colour: red\n"
    )

    with pytest.raises(SystemExit) as ended:
        call_command("load_pipeline", str(file), stderr=errors)

    assert ended.value.code == 1
    assert [line.partition(":")[0] for line in errors.getvalue().splitlines()] == [
        "steps[0].agent_role",
        "steps[1].colour",
        "steps[1].id",
    ]
    with tenant_scope(acme.pk):
        assert not PipelineRun.objects.filter().exists()


@in_one_test(("content", "error"), [(None, "cannot be read"), (b"\xff\xfe\xff", "not UTF-8")])
def test_an_unreadable_file_is_reported(
    acme: Tenant, tmp_path: Path, content: bytes | None, error: str
) -> None:
    file = tmp_path / "flow.yaml"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(CommandError, match=error):
        load(str(file))


def test_the_error_of_a_malformed_file_names_the_line(acme: Tenant, tmp_path: Path) -> None:
    file, errors = tmp_path / "flow.yaml", io.StringIO()
    file.write_text("key: [")

    with pytest.raises(SystemExit):
        call_command("load_pipeline", str(file), stderr=errors)

    assert "line 2" in errors.getvalue()
