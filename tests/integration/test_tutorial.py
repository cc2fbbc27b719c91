"""The quick start, the tutorials and the how-to guides lead to the results that they promise.

Runs every command in its order against real processes: web, a worker, the sample agents, and what the pages start.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.hashers import PBKDF2PasswordHasher

from activities.models import Activity
from orchestrator.local import ADMIN
from pipelines.models import PipelineRun, Schedule
from tenants import registration, tokens
from tenants.context import tenant_scope
from tenants.models import Membership, Role
from tests import pages
from tests.architecture import tree
from tests.document_reader import Block, Reader, blocks, reader
from tests.installation import Installation, run_installation
from tests.network import free_port
from tests.screenshots import walk

pytestmark = pytest.mark.long

DOCS = tree.ROOT / "docs"
HOW_TO = sorted(path.name for path in (DOCS / "how-to").glob("*.md") if path.name != "index.md")
#: The title of blocks that are not run, because they clone the project or start the installation that the tests already have.
NOT_RUN = "first terminal"


@pytest.fixture(scope="module")
def installation(
    django_db_setup: None, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    with django_db_blocker.unblock(), run_installation(tmp_path_factory.mktemp("home")) as running:
        get_user_model().objects.create_superuser(ADMIN)  # as `make up` does
        yield running


@pytest.fixture
def newcomer(installation: Installation, tmp_path: Path) -> Iterator[Reader]:
    replacements = {
        ".venv/bin/python manage.py": installation.manage,
        "http://127.0.0.1:8000": installation.web,
        "9100": str(free_port()),
        "9200": str(free_port()),
    }
    with reader(tmp_path, installation.environment, replacements) as user:
        yield user


def blocks_to_run(page: str) -> list[Block]:
    return [block for block in blocks(DOCS / page) if block.title != NOT_RUN]


def test_the_quick_start_leads_to_finished_work(newcomer: Reader) -> None:
    outputs = [newcomer.follow(block) for block in blocks_to_run("quick-start.md")]

    assert "Bees fly far" in json.loads(outputs[1])["content"]
    assert len(outputs) == 5


def test_the_tutorial_leads_to_two_agents_in_a_pipeline_with_an_approval(newcomer: Reader) -> None:
    has_node = shutil.which("node") is not None
    outputs: list[str] = []
    for block in blocks_to_run("tutorial.md"):
        if block.section.startswith("6.") and not has_node:
            continue
        if block.section.startswith("7.") and "7." not in outputs:
            newcomer.interrupt("third terminal")
            outputs.append("7.")
        outputs.append(newcomer.follow(block))

    output = "\n".join(outputs)
    assert "- Bees fly far when the lime\n- They bring honey to the hive" in output
    assert "- Bees fly far\n- They bring honey\n" in output
    assert "agent__headline-writer\n" in output
    assert "pipeline headlines version 1" in output
    assert "Attempt 1 of 3 failed" in output
    assert "could not be reached" in output
    if has_node:
        assert "pipeline headlines version 2" in output
        assert "All 2 fit." in output


@pytest.mark.ui
def test_the_tutorial_in_the_browser_leads_to_a_completed_run_and_a_schedule(
    installation: Installation,
) -> None:
    """Done by an admin of one tenant, who has no other rights on the platform."""
    press = registration.register("northern-press", name="Northern Press")
    # Hashed as the installation does, because it does not know the quicker hasher of the tests' settings.
    password = PBKDF2PasswordHasher().encode("a long enough one", "salt" * 4)
    anna = get_user_model().objects.create(username="anna", password=password)
    with tenant_scope(press.pk):
        Membership.objects.create(tenant=press, user=anna, role=Role.ADMIN)
    pictures: list[str] = []
    with pages.browser() as chromium:
        page = chromium.new_context(
            base_url=installation.web, viewport={"width": 1280, "height": 800}
        ).new_page()
        page.set_default_timeout(30_000)
        page.goto("/")
        page.fill("input[name=username]", "anna")
        page.fill("input[name=password]", "a long enough one")
        page.press("input[name=password]", "Enter")
        walk.walk(page, pictures.append)
        page.close()

    tutorial = (DOCS / "tutorial-browser.md").read_text(encoding="utf-8")
    assert re.findall(r"images/tutorial/(\w+)\.webp\)\]", tutorial) == pictures
    assert walk.NOTES in tutorial
    with tenant_scope(press.pk):
        run = PipelineRun.objects.get()
        rounds = list(
            Activity.objects.filter(agent_role="content-brief-writer")
            .order_by("round")
            .values_list("status", flat=True)
        )
        schedule = Schedule.objects.get()
    assert (run.status, run.name, run.labels) == (
        "completed",
        "Bees in the city for Northern Press",
        {"client": "northern-press"},
    )
    assert rounds == ["rejected", "approved"]
    assert (schedule.name, schedule.cron) == ("City bees, every Monday", "0 9 * * 1")


@pytest.mark.parametrize("page", HOW_TO)
def test_a_how_to_guide_leads_to_what_it_promises(newcomer: Reader, page: str) -> None:
    """Each page has its own tenant, and starts with the variables of the quick start."""
    acme = registration.register(page.removesuffix(".md"))
    with tenant_scope(acme.pk):
        _, secret = tokens.create(acme, "admin", "reader", platform=True)
    set_up = blocks_to_run("quick-start.md")[0].text.splitlines()[3:]
    newcomer.type("\n".join([f"TENANT={acme.slug}", f"TOKEN={secret}", *set_up]))

    for block in blocks_to_run(f"how-to/{page}"):
        newcomer.follow(block)


def test_the_index_lists_every_how_to_guide() -> None:
    listed = re.findall(
        r"\]\(([\w-]+\.md)\) \|$", (DOCS / "how-to" / "index.md").read_text(encoding="utf-8"), re.MULTILINE
    )

    assert sorted(listed) == HOW_TO


@pytest.mark.parametrize("page", ["quick-start.md", "tutorial.md"])
def test_blocks_that_are_not_run_only_clone_and_call_make(page: str) -> None:
    lines = [
        line for block in blocks(DOCS / page) if block.title == NOT_RUN for line in block.text.splitlines()
    ]

    assert [line for line in lines if not line.startswith(("git clone ", "cd ", "make "))] == []
    assert "make up" in lines
