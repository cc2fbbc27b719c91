"""Several hosts in one network: three with web, worker and beat each, one with the servers. Hosts are cut off and killed; nothing is lost.

A host is a network namespace that its processes share. A host that is cut off loses every packet, as when a cable is pulled, so its
connections hang instead of being refused.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.containers import compose, outside
from tests.containers.compose import HOST
from tests.containers.engine import Engine, Results, Trouble, wait
from tests.containers.images import BASE, OURS, SERVERS, Images
from tests.containers.outside import AGENT_PORT, Installation

HOSTS = ("a", "b", "c")
PROCESSES = ("web", "worker", "beat")
WEB_PORT = 8000
READY_SECONDS, CUT_SECONDS, REST_SECONDS = 150.0, 45.0, 240.0
LEADER = "SELECT host FROM activities_leaderlease WHERE expires_at > clock_timestamp()"


def validate(tell: Results) -> None:
    """Check docker-compose.yml, because the hosts run what it runs."""
    compose.validate(tell)


class Cluster:
    """Containers are named `<project>_<host>_<process>`; `<project>_<host>` holds the network of a host."""

    def __init__(self, engine: Engine, tell: Results) -> None:
        self.engine, self.tell = engine, tell
        self.project = f"orchestrator-check-{os.getpid()}"
        self.password = secrets.token_hex(20)
        self.key, self.ring = secrets.token_urlsafe(60), f"check:{secrets.token_hex(32)}"
        self.addresses: dict[str, str] = {}

    def name_of(self, host: str, process: str = "") -> str:
        return f"{self.project}_{host}" + (f"_{process}" if process else "")

    def _run(
        self, host: str, process: str, *command: str, options: tuple[str, ...] = (), image: str = OURS
    ) -> None:
        self.engine.podman(
            "run", "-d", "--pull=never", "--name", self.name_of(host, process),
            "--network", f"container:{self.name_of(host)}", f"--uts=container:{self.name_of(host)}", *options, image, *command,
        )  # fmt: skip

    def add_host(self, host: str) -> None:
        """Create the network of a host, with a container that only waits."""
        wait_for_ever = "import signal; signal.signal(15, lambda *_: exit(0)); signal.pause()"
        self.engine.podman(
            "run", "-d", "--pull=never", "--name", self.name_of(host), f"--hostname=host-{host}",
            "--network", f"{self.project}:alias={host}",
            BASE, "python3", "-c", wait_for_ever,
        )  # fmt: skip
        networks = self.engine.inspect(self.name_of(host))["NetworkSettings"]["Networks"]
        self.addresses[host] = networks[self.project]["IPAddress"]

    def start_servers(self) -> None:
        self.engine.podman("network", "create", self.project)
        self.add_host("servers")
        login = f"-e=POSTGRES_USER=orchestrator_owner -e=POSTGRES_PASSWORD={self.password} -e=POSTGRES_DB=orchestrator".split()
        self._run("servers", "postgres", options=(*login, "--entrypoint=/stand-ins/postgres"), image=SERVERS)
        redis = (
            "valkey-server",
            "--requirepass",
            self.password,
            "--appendonly",
            "yes",
            "--maxmemory-policy",
            "noeviction",
        )
        self._run(
            "servers", "redis", *redis, options=("-v=/data", "--entrypoint=/stand-ins/valkey"), image=SERVERS
        )
        mongo = (
            "-e=MONGO_APP_USERNAME=app",
            f"-e=MONGO_APP_PASSWORD={self.password}",
            "--entrypoint=/stand-ins/mongo",
        )
        self._run("servers", "mongo", options=mongo, image=SERVERS)
        program = Path(outside.__file__).with_name("agent.py")
        mounted = (f"-v={program}:/agent.py:ro",)
        self._run("servers", "agent", "python3", "/agent.py", str(AGENT_PORT), options=mounted, image=BASE)
        ready = partial(self._succeeds, "postgres", "pg_isready", "-h", self.addresses["servers"])
        if not wait("PostgreSQL", 60, ready):
            raise Trouble(
                f"PostgreSQL does not answer: {self.engine.logs(self.name_of('servers', 'postgres'))}"
            )

    def _succeeds(self, process: str, *command: str) -> bool:
        return self.engine.execute(self.name_of("servers", process), *command, check=False).returncode == 0

    @property
    def environment(self) -> tuple[str, ...]:
        at = self.addresses["servers"]
        values = {
            "DATABASE_URL": f"postgresql://orchestrator_owner:{self.password}@{at}:5432/orchestrator",
            "REDIS_URL": f"redis://:{self.password}@{at}:6379/0",
            "MONGODB_URI": f"mongodb://app:{self.password}@{at}:27017/orchestrator",
            "SECRET_KEY": self.key, "FIELD_ENCRYPTION_KEYS": self.ring, "ALLOWED_HOSTS": HOST,
            "ORCHESTRATOR_PUBLIC_URL": f"https://{HOST}", "WEB_BIND": "0.0.0.0", "PORT": str(WEB_PORT),
            "AGENT_EGRESS_ALLOW": f"agents={at}:{AGENT_PORT}", "WORKER_CONCURRENCY": "4",
        }  # fmt: skip
        return tuple(f"-e={name}={value}" for name, value in values.items())

    def start_process(self, host: str, process: str) -> None:
        more = ("--", "--pidfile=", "--schedule=/tmp/beat") if process == "beat" else ()
        self.engine.podman("rm", "-f", "-t", "0", self.name_of(host, process), check=False)
        self._run(
            host, process, "python", "-m", "orchestrator.processes", process, *more, options=self.environment
        )

    def manage(self, *arguments: str) -> str:
        """Run manage.py in a new container on the host of the servers, which is never cut off."""
        return self.manage_of(*arguments).stdout

    def manage_of(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.engine.podman(
            "run", "--rm", "--pull=never", "--network", f"container:{self.name_of('servers')}", *self.environment, OURS,
            "python", "manage.py", *arguments, check=check,
        )  # fmt: skip

    def sql(self, statement: str) -> str:
        return self.engine.execute(
            self.name_of("servers", "postgres"), "psql", "-h", "/tmp", "-U", "orchestrator_owner", "-d", "orchestrator", "-Atc", statement
        ).stdout.strip()  # fmt: skip

    def leader(self) -> str | None:
        """Return the host of the leader, or None."""
        name = self.sql(LEADER)
        return next((host for host in HOSTS if name == f"host-{host}"), None)

    def cut(self, host: str) -> None:
        self._filter(host, "-A")

    def heal(self, host: str) -> None:
        self._filter(host, "-D")

    def _filter(self, host: str, how: str) -> None:
        inside = ["nsenter", "-t", str(self.engine.pid(self.name_of(host))), "-n", "iptables", "-w"]
        for chain in ("INPUT", "OUTPUT"):
            self.engine.call(
                [*inside, how, chain, "!", "-i" if chain == "INPUT" else "-o", "lo", "-j", "DROP"]
            )

    def kill(self, host: str) -> None:
        """Kill all processes of the host at once, as in a power failure, before any of them can send a packet."""
        self.cut(host)
        for process in PROCESSES:
            with suppress(ProcessLookupError):
                os.kill(self.engine.pid(self.name_of(host, process)), signal.SIGKILL)
        self.heal(host)

    def calls(self) -> list[dict[str, Any]]:
        status, raw = outside.send(f"http://{self.addresses['servers']}:{AGENT_PORT}/")
        if status != 200:
            raise Trouble(f"the agent does not answer: {status}")
        calls: list[dict[str, Any]] = json.loads(raw)["calls"]
        return calls

    def is_ready(self, host: str) -> bool:
        return (
            outside.send(f"http://{self.addresses[host]}:{WEB_PORT}/readyz", headers={"Host": HOST})[0] == 200
        )


def run(engine: Engine, images: Images, tell: Results, *, keep: bool) -> None:
    """Add failed checks to `tell.failures`. Remove all containers at the end unless `keep`."""
    cluster = Cluster(engine, tell)
    images.stand_ins()
    images.ours()
    try:
        _go_through(cluster, tell)
    finally:
        if keep:
            tell(f"kept: containers whose names begin with {cluster.project}")
        else:
            tell("cleaning up")
            engine.remove(cluster.project)


def _go_through(cluster: Cluster, tell: Results) -> None:
    cluster.start_servers()
    cluster.manage("migrate", "-v0")
    tell(f"servers are up; hosts {', '.join(HOSTS)} with {', '.join(PROCESSES)} each are started")
    for host in HOSTS:
        cluster.add_host(host)
        for process in PROCESSES:
            cluster.start_process(host, process)
    for host in HOSTS:
        if not tell.check(
            f"host {host} is ready", wait(host, READY_SECONDS, partial(cluster.is_ready, host))
        ):
            tell(cluster.engine.logs(cluster.name_of(host, "web")))
            return
    site = Installation(
        [f"http://{cluster.addresses[host]}:{WEB_PORT}" for host in HOSTS], HOST, cluster.manage
    )
    site.sign_in("check")
    site.use_agent(f"http://{cluster.addresses['servers']}:{AGENT_PORT}/run")

    first = [site.submit(f"before-{number}") for number in range(6)]
    ended = site.await_end(first, 120, tell)
    tell.check("three hosts do work together", set(ended.values()) == {outside.DONE}, ended)
    if not wait("a leader", 60, lambda: cluster.leader() is not None):
        raise Trouble("no host leads")
    everything = [*first, *_cut_off(cluster, site, tell), *_killed(cluster, site, tell)]
    _at_rest(cluster, site, tell, everything)


def _cut_off(cluster: Cluster, site: Installation, tell: Results) -> list[str]:
    """Cut off the host of the leader while it works, and reconnect it."""
    leader = cluster.leader() or HOSTS[0]
    others = [host for host in HOSTS if host != leader]
    work = [site.submit(f"cut-{number}", seconds=4) for number in range(12)]
    wait("running work", 60, lambda: any(call["mark"].startswith("cut-") for call in cluster.calls()))
    tell(f"host {leader}, which leads, is cut off from everything")
    cluster.cut(leader)
    began = time.monotonic()
    site.fronts = [f"http://{cluster.addresses[host]}:{WEB_PORT}" for host in others]
    moved = wait("another leader", CUT_SECONDS, lambda: cluster.leader() in others)
    tell.check(f"another host leads after {time.monotonic() - began:.0f} s", moved, cluster.leader())
    answered = wait("the API", CUT_SECONDS, lambda: site.status(work[0]) != "unknown")
    tell.check("the API of the other hosts answers", answered)
    meanwhile = [site.submit(f"meanwhile-{number}") for number in range(6)]
    ended = site.await_end(work + meanwhile, REST_SECONDS, tell)
    tell.check("all work ends while the host is away", set(ended.values()) == {outside.DONE}, ended)
    tell(f"host {leader} can be reached again")
    cluster.heal(leader)
    for process in PROCESSES:  # as a service manager does with a process that exited
        if not cluster.engine.runs(cluster.name_of(leader, process)):
            tell(f"     its {process} had exited and is restarted")
            cluster.start_process(leader, process)
    back = wait("the host", READY_SECONDS, partial(cluster.is_ready, leader))
    tell.check("the host that was away is ready again", back)
    site.fronts.append(f"http://{cluster.addresses[leader]}:{WEB_PORT}")
    return work + meanwhile


def _killed(cluster: Cluster, site: Installation, tell: Results) -> list[str]:
    """Kill one host for the rest of the check."""
    victim = cluster.leader() or HOSTS[0]
    work = [site.submit(f"killed-{number}", seconds=4) for number in range(12)]
    wait("running work", 60, lambda: any(call["mark"].startswith("killed-") for call in cluster.calls()))
    tell(f"host {victim} is killed, with everything on it")
    cluster.kill(victim)
    site.fronts = [front for front in site.fronts if cluster.addresses[victim] not in front]
    ended = site.await_end(work, REST_SECONDS, tell)
    tell.check("all work of a dead host is done by the others", set(ended.values()) == {outside.DONE}, ended)
    return work


def _at_rest(cluster: Cluster, site: Installation, tell: Results, everything: list[str]) -> None:
    wrong = {
        activity: status
        for activity, status in site.await_end(everything, 30, tell).items()
        if status != outside.DONE
    }
    tell.check(f"all {len(everything)} activities are completed, and stay so", not wrong, wrong)
    outputs = [site.api("GET", f"/activities/{activity}/output/")["content"] for activity in everything]
    tell.check("each has its own output", outputs == [f"done: {activity}" for activity in everything])
    again = len(cluster.calls()) - len({call["activity"] for call in cluster.calls()})
    tell(f"     the agent was called {again} more times, for work whose host was lost")
    invariants = cluster.manage_of("check_invariants", check=False)
    output = (invariants.stdout + invariants.stderr)[-800:]
    tell.check("every invariant holds", invariants.returncode == 0, output)
