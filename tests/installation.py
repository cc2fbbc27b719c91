"""An installation in real processes on the databases of this test process: web, a worker for every role, and the sample agents."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from agents import configuration
from agents.models import Agent
from orchestrator.embedded import ServiceHome
from orchestrator.embedded.identity import wait_until
from orchestrator.local import SAMPLE_ROLES
from orchestrator.processes import ProcessSpec, Supervisor, standard_processes
from tests import cleaning, preloaded_manage, servers
from tests.architecture import tree
from tests.network import free_port
from tests.quick_python import quick_supervisors

#: Shorter than in production, because tests would only wait. The tick is not: with a shorter one the leader is the dearest process.
INTERVALS = {"ORCHESTRATOR_UNDO_SECONDS": "1"}
#: Hosts that the documents name. The address guard looks up all others, and there may be no name service.
DOCUMENTED_HOSTS = tuple(f"{name}:443" for name in (
    "agents.example.com", "acme.example.com", "hooks.slack.com", "models.example.com", "project.example.com",
))  # fmt: skip


@dataclass(frozen=True)
class Installation:
    """The address of its web process, the command that replaces `manage.py`, and the environment in which commands reach its servers."""

    web: str
    manage: str
    environment: Mapping[str, str]


@contextmanager
def run_installation(folder: Path) -> Iterator[Installation]:
    """Start all processes with the settings of a newcomer's machine, and clean up at the end."""
    agents, port = free_port(), free_port()
    environment = servers.environment(settings) | INTERVALS | {
        "DJANGO_SETTINGS_MODULE": "orchestrator.settings.local", "ORCHESTRATOR_HOME": str(folder), "PORT": str(port),
        "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(tree.ROOT), "AGENT_EGRESS_ALLOW": ",".join(DOCUMENTED_HOSTS),
    }  # fmt: skip
    before = dict(Agent.objects.values_list("role", "endpoint"))
    for role in SAMPLE_ROLES:
        Agent.objects.filter(role=role).update(endpoint=f"http://127.0.0.1:{agents}/{role}")
    try:
        with quick_supervisors(), Supervisor(ServiceHome(folder), environment=environment) as supervisor:
            text_agents = (sys.executable, "-m", "examples.agents.text_agents", "--port", str(agents))
            supervisor.start(ProcessSpec("agents", text_agents))
            web, worker = standard_processes(port=port, flower_port=0, concurrency=4)[:2]
            supervisor.start(web)
            supervisor.start(worker)
            commands = folder / "commands"
            serving = f"from tests import preloaded_manage; preloaded_manage.serve({str(commands)!r})"
            supervisor.start(ProcessSpec("commands", (sys.executable, "-c", serving)))
            address = f"http://127.0.0.1:{port}"
            supervisor.wait_until_ready(f"{address}/readyz", 60)
            wait_until(commands.exists, 30)
            yield Installation(
                address,
                shlex.join([sys.executable, "-S", "-E", preloaded_manage.__file__, str(commands)]),
                environment,
            )
    finally:
        cleaning.empty_database()
        cleaning.empty_redis()
        Agent.objects.exclude(role__in=before).delete()  # the registry outlives the tests of a module
        for role in SAMPLE_ROLES:
            Agent.objects.filter(role=role).update(endpoint=before[role])
        configuration.forget()
