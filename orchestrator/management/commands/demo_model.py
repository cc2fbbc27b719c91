"""`manage.py demo_model`: the content pipeline done by a language model on this machine, with a person's decisions, offline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management import call_command
from rich.console import Console
from rich.live import Live

from orchestrator.demo import display, models, story
from orchestrator.demo.opening import Demonstration, agency_of, content_brief, free_port
from orchestrator.demo.story import Agency
from orchestrator.local import Addresses, LocalStack
from orchestrator.processes import Supervisor


class Command(Demonstration):
    help = "Run the content pipeline with a small language model on this machine, and show what it wrote and used."
    farewell = "The model ran on this machine; nothing was asked of anybody else."

    @contextmanager
    def running(self, stack: LocalStack) -> Iterator[tuple[Supervisor, Addresses]]:
        """The stack, with the model's roles and its server."""
        server = models.server(port := free_port(0))
        endpoint = f"http://127.0.0.1:{port}/v1"
        call_command("migrate", verbosity=0)
        models.register_roles(endpoint)
        with stack.running() as (supervisor, addresses):
            try:
                stack.tell(f"Loading the model {models.weights().name}")
                supervisor.start(server)
                models.wait_until_ready(endpoint, supervisor)
                yield supervisor, addresses
            finally:
                models.retire_roles()

    def play(
        self, console: Console, stack: LocalStack, supervisor: Supervisor, addresses: Addresses, text: str
    ) -> None:
        agency = agency_of("Agency with a model", "demo-model", addresses, note=models.NOTE)
        story.begin_run(agency, models.by_model(content_brief()), text[: models.LONGEST_TEXT])
        with Live(display.live([agency]), console=console, refresh_per_second=8) as screen:
            story.follow_runs(
                [agency],
                lambda: screen.update(display.live([agency])),
                patience_seconds=models.PATIENCE_SECONDS,
            )
        _tell(console, agency)


def _tell(console: Console, agency: Agency) -> None:
    work = [activity for activity in story.work_of(agency) if activity["output_ref"]]
    outputs = {each["id"]: agency.operator.get(f"/activities/{each['id']}/output/") for each in work}
    display.results(console, agency, outputs)
    console.print(display.table([agency]))
    console.print(f"{agency.name}: {'; '.join(agency.log)}")
    console.print(display.usage_table(agency.operator.get("/usage/", group_by="role,model")))
    agency.operator.close()
    agency.editor.close()
