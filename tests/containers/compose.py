"""docker-compose.yml in real containers: build, health, one activity from end to end, a killed worker, and the rights of each login."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from tests.containers import outside
from tests.containers.engine import ROOT, Engine, Results, Trouble, free_ports, tails, wait
from tests.containers.images import BASE, Images
from tests.containers.outside import AGENT_PORT, Installation

FILE = ROOT / "docker-compose.yml"
COMPOSE = "podman-compose==1.6.0"
HOST = "orchestrator.check.example"
PROCESSES = ("web", "worker", "system", "beat", "flower")
HEALTHY_SECONDS, MIGRATE_SECONDS, TAKEN_OVER_SECONDS = 60.0, 300.0, 150.0
GENERATORS = {
    "SECRET_KEY": lambda: secrets.token_urlsafe(60),
    "FIELD_ENCRYPTION_KEYS": lambda: f"check:{secrets.token_hex(32)}",
    "ALLOWED_HOSTS": lambda: HOST,
    "ORCHESTRATOR_PUBLIC_URL": lambda: f"https://{HOST}",
    "FLOWER_BASIC_AUTH": lambda: f"check:{secrets.token_hex(16)}",
}


def services() -> dict[str, dict[str, Any]]:
    declared: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["services"]
    return declared


def random_variables() -> dict[str, str]:
    """Return a random value for every required variable of the file, as an operator would write them into .env."""
    text = re.sub(r"^\s*#.*$", "", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    needed = set(re.findall(r"\$\{(\w+):\?", text))
    return {name: GENERATORS.get(name, partial(secrets.token_hex, 20))() for name in sorted(needed)}


def expand(value: str, variables: dict[str, str]) -> str:
    """Expand variables in a text as Compose does: `${NAME:?error}`, `${NAME:-default}`, `$$`."""
    expanded = re.sub(
        r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}", lambda match: variables.get(match[1]) or match[2] or "", value
    )
    return expanded.replace("$$", "$")


def validate(tell: Results) -> None:
    """Check the file without an engine: each process would start with the values that it gets."""
    from orchestrator.settings.unsafe import faults

    variables = random_variables()
    declared = services()
    tell.check(
        "docker-compose.yml can be read and has every process",
        set(PROCESSES) <= set(declared),
        sorted(declared),
    )
    documented = set(re.findall(r"^#?(\w+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    tell.check(
        "every variable that must be set is in .env.example",
        set(variables) <= documented,
        set(variables) - documented,
    )
    for name, service in declared.items():
        if not str(service.get("image", "")).startswith("orchestrator"):
            continue
        environment = {
            key: expand(str(value), variables)
            for key, value in service["environment"].items()
            if value is not None  # what is passed on if .env sets it
        }
        command = [expand(part, variables) for part in service["command"]]
        wrong = faults(environment, command)
        tell.check(
            f"{name} would start in production with what the file gives it", not wrong, "; ".join(wrong)
        )
    unhealthy = [
        name
        for name, service in declared.items()
        if service.get("restart") != "no" and "healthcheck" not in service
    ]
    tell.check("every long-running service has a health check", not unhealthy, unhealthy)
    reachable = [
        port
        for service in declared.values()
        for port in service.get("ports", ())
        if not str(port).startswith("127.0.0.1:")
    ]
    tell.check("no port is open beyond this machine", not reachable, reachable)


class Composition:
    """The services of the file as a project of our own, started in stages, because not every podman respects `depends_on`."""

    def __init__(self, engine: Engine, folder: Path, tell: Results) -> None:
        self.engine, self.folder, self.tell = engine, folder, tell
        self.project = f"orchestrator-check-{os.getpid()}"
        self.ports = dict(zip(("PORT", "FLOWER_PORT"), free_ports(2), strict=True))
        self.variables = random_variables() | {name: str(port) for name, port in self.ports.items()}
        self.variables["AGENT_EGRESS_ALLOW"] = f"agents=agent:{AGENT_PORT}"

    def name_of(self, service: str) -> str:
        return f"{self.project}_{service}_1"

    @property
    def network(self) -> str:
        return f"{self.project}_default"

    def call(self, *arguments: str, seconds: float = 300) -> str:
        program = [str(Path(sys.executable).parent / "uvx"), "-q", "--from", COMPOSE, "podman-compose"]
        environment = self.folder / "check.env"
        environment.write_text("".join(f"{name}={value}\n" for name, value in self.variables.items()))
        environment.chmod(0o600)
        options = ["-p", self.project, "--env-file", str(environment), "-f", str(FILE)]
        return self.engine.call([*program, *options, *arguments], seconds=seconds).stdout

    def start(self, *names: str) -> None:
        self.call("up", "-d", "--no-deps", "--no-build", *names)

    def stage(self, names: tuple[str, ...]) -> bool:
        """Start services and wait until their own health checks succeed."""
        self.start(*names)
        well = True
        for service in names:
            name = self.name_of(service)
            healthy = wait(
                service,
                HEALTHY_SECONDS,
                partial(self.engine.is_healthy, name),
                dead=partial(self._dead, name),
            )
            well &= self.tell.check(f"{service} is healthy", healthy, self.engine.logs(name))
        return well

    def _dead(self, name: str) -> str:
        state = self.engine.inspect(name).get("State", {})
        ended = state.get("Status") in {"exited", "stopped"}
        return f"{name} ended with {state.get('ExitCode')}:\n{self.engine.logs(name)}" if ended else ""

    def once(self, service: str) -> bool:
        """Run a service until it exits."""
        self.start(service)
        name = self.name_of(service)
        wait(
            service,
            MIGRATE_SECONDS,
            lambda: self.engine.inspect(name).get("State", {}).get("Status") in {"exited", "stopped"},
        )
        code = self.engine.inspect(name).get("State", {}).get("ExitCode")
        return self.tell.check(
            f"{service} ended well", code == 0 and not self.engine.runs(name), self.engine.logs(name)
        )

    def manage(self, *arguments: str) -> str:
        return self.engine.execute(self.name_of("web"), "python", "manage.py", *arguments).stdout

    def start_agent(self) -> None:
        """Start the agent on the network of the file, as an agent in the installation's own network."""
        program = Path(outside.__file__).with_name("agent.py")
        self.engine.podman(
            "run", "-d", "--pull=never", "--name", self.name_of("agent"), "--network", f"{self.network}:alias=agent",
            "-v", f"{program}:/agent.py:ro", BASE, "python3", "/agent.py", str(AGENT_PORT),
        )  # fmt: skip

    def calls(self) -> list[dict[str, Any]]:
        read = (
            f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:{AGENT_PORT}/').read().decode())"
        )
        calls: list[dict[str, Any]] = json.loads(
            self.engine.execute(self.name_of("agent"), "python3", "-c", read).stdout
        )["calls"]
        return calls


def run(engine: Engine, images: Images, tell: Results, *, keep: bool) -> None:
    """Add failed checks to `tell.failures`. Remove all containers at the end unless `keep`."""
    with TemporaryDirectory() as temporary:
        composition = Composition(engine, Path(temporary), tell)
        try:
            _provide(composition, images)
            _go_through(composition, tell)
        except Trouble:
            tell(
                tails(
                    engine,
                    [
                        composition.name_of(name)
                        for name in services()
                        if engine.inspect(composition.name_of(name))
                    ],
                )
            )
            raise
        finally:
            if keep:
                tell(
                    f"kept: containers whose names begin with {composition.project}, in the storage of {engine.folder}"
                )
            else:
                tell("cleaning up")
                engine.remove(composition.project)


def _provide(composition: Composition, images: Images) -> None:
    variables = composition.variables
    images.servers(sorted({
        expand(str(service["image"]), variables) for service in services().values() if "build" not in service
    }))  # fmt: skip
    images.ours()


def _go_through(composition: Composition, tell: Results) -> None:
    engine = composition.engine
    if not composition.stage(("postgres", "redis", "mongo")) or not composition.once("migrate"):
        return
    if not composition.stage(PROCESSES):
        return
    front = f"http://127.0.0.1:{composition.ports['PORT']}"
    status, raw = outside.send(f"{front}/readyz", headers={"Host": HOST})
    tell.check(
        "the site is ready at its published port, with every server", status == 200, f"{status} {raw[:300]!r}"
    )
    status, _ = outside.send(f"http://127.0.0.1:{composition.ports['FLOWER_PORT']}/")
    tell.check("Flower asks for its login", status == 401, status)

    _least_privilege(composition, tell)
    composition.start_agent()
    site = Installation([front], HOST, composition.manage)
    site.sign_in("check")
    site.use_agent(f"http://agent:{AGENT_PORT}/run")
    first = site.submit("one")
    ended = site.await_end([first], 90, tell)
    tell.check("an activity goes from the API to an agent and back", ended[first] == outside.DONE, ended)
    output = site.api("GET", f"/activities/{first}/output/") if ended[first] == outside.DONE else {}
    tell.check("its output is stored", output.get("data") == {"mark": "one"}, output)
    _kill_a_worker(composition, site, tell)
    invariants = engine.podman(
        "exec", composition.name_of("web"), "python", "manage.py", "check_invariants", check=False
    )
    output = (invariants.stdout + invariants.stderr)[-800:]
    tell.check("every invariant holds", invariants.returncode == 0, output)


def _least_privilege(composition: Composition, tell: Results) -> None:
    """Try, from inside its container, what a compromised process could do."""
    engine, database = composition.engine, composition.name_of("postgres")

    def may_become(login: str, password: str, role: str) -> bool:
        at = "host=127.0.0.1 dbname=orchestrator connect_timeout=5"
        process = engine.podman(
            "exec", "-e", f"PGPASSWORD={composition.variables[password]}", database,
            "psql", f"{at} user={login}", "-Atc", f"SET ROLE {role}; SELECT current_user", check=False,
        )  # fmt: skip
        return role in process.stdout

    app, system = (
        ("orchestrator_app_login", "POSTGRES_APP_PASSWORD"),
        ("orchestrator_system_login", "POSTGRES_SYSTEM_PASSWORD"),
    )
    tell.check("the login of tenants' work becomes its role", may_become(*app, "orchestrator_app"))
    above = [
        role for role in ("orchestrator_system", "orchestrator_owner", "postgres") if may_become(*app, role)
    ]
    tell.check("and no role above it", not above, above)
    above = [role for role in ("orchestrator_owner", "postgres") if may_become(*system, role)]
    tell.check(
        "the login that sees all tenants owns nothing",
        may_become(*system, "orchestrator_system") and not above,
        above,
    )
    everything = [name for name in services() if engine.runs(composition.name_of(name))]
    secret = {value for name, value in composition.variables.items() if re.search("PASSWORD|KEY|AUTH", name)}
    exposed = [
        name
        for name in everything
        if any(value in _command_lines(engine, composition.name_of(name)) for value in secret)
    ]
    tell.check("no command line contains a secret", not exposed, exposed)
    writable = [
        name
        for name in everything
        if engine.execute(composition.name_of(name), "touch", "/x", check=False).returncode == 0
    ]
    tell.check("no container can change its files", not writable, writable)
    key = composition.variables["FIELD_ENCRYPTION_KEYS"]
    keyed = [
        name for name in everything if key in str(engine.inspect(composition.name_of(name))["Config"]["Env"])
    ]
    tell.check(
        "a process that opens no credentials has no key", set(keyed) == {"web", "worker", "system"}, keyed
    )


def _command_lines(engine: Engine, container: str) -> str:
    """Return the command lines of the first process of a container and of its children."""
    first = engine.pid(container)
    pids = [first, *(int(pid) for pid in Path(f"/proc/{first}/task/{first}/children").read_text().split())]
    return " ".join(Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace") for pid in pids)


def _kill_a_worker(composition: Composition, site: Installation, tell: Results) -> None:
    engine, worker = composition.engine, composition.name_of("worker")
    # Then only `worker` can claim the activity.
    engine.podman("stop", "-t", "30", composition.name_of("system"), check=False)
    activity = site.submit("survives", seconds=20)
    begun = wait(
        "the agent to be called",
        60,
        lambda: any(call["activity"] == activity for call in composition.calls()),
    )
    tell.check("a long activity begins", begun)
    with suppress(ProcessLookupError):
        os.kill(engine.pid(worker), signal.SIGKILL)
    wait(
        "the worker's end",
        20,
        lambda: not engine.runs(worker) or engine.inspect(worker).get("RestartCount", 0) > 0,
    )
    tell("     the worker was killed while it waited for the agent")
    if not wait("a new worker", 20, lambda: engine.runs(worker)):
        tell("     podman does not restart it here (a service manager does); restarted by the check")
        composition.start("worker")
    ended = site.await_end([activity], TAKEN_OVER_SECONDS, tell)
    calls = [call for call in composition.calls() if call["activity"] == activity]
    tell.check("the work of a killed worker is taken over and ends", ended[activity] == outside.DONE, ended)
    tell.check(
        "by a second call of the agent under another run", len({call["run"] for call in calls}) == 2, calls
    )
