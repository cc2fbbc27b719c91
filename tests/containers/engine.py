"""Podman with its own storage below `var/containers`, apart from the images and containers of the user."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HELPERS = ("/usr/libexec/podman", "/usr/lib/podman", "/usr/local/libexec/podman", "/usr/local/lib/podman")
OPEN_FILES, PROCESSES = 20_000, 8_000  # the limits of a container, unless the machine allows less

#: The programs that podman needs, and the packages of Debian that contain them.
NEEDED = {
    "podman": ("podman", "podman"),
    "an OCI runtime": ("crun runc", "runc"),
    "conmon": ("conmon", "conmon"),
    "an init for containers": ("catatonit", "catatonit"),
    "a network back end": ("netavark bridge", "netavark aardvark-dns"),
    "iptables or nft": ("iptables nft", "iptables"),
}


class Trouble(Exception):
    """The check itself cannot continue, which tells nothing about what it checks. The message says what to do."""


class Results:
    """Prints lines with the time since the start, and collects the failed checks."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.failures: list[str] = []

    def __call__(self, line: str) -> None:
        print(f"[{time.monotonic() - self.began:4.0f} s] {line}", flush=True)

    def check(self, what: str, held: bool, otherwise: object = "") -> bool:
        self(f"{'ok  ' if held else 'FAIL'} {what}{'' if held else f': {otherwise}'}")
        if not held:
            self.failures.append(what)
        return held


def missing() -> list[str]:
    """Return what is missing on this machine, each with the package of Debian that contains it."""
    if not sys.platform.startswith("linux"):
        return ["Linux, because podman runs the containers on this machine"]
    absent = [
        f"{what} (apt install {package})"
        for what, (programs, package) in NEEDED.items()
        if not any(_there(program) for program in programs.split())
    ]
    return (
        absent if os.geteuid() == 0 else [*absent, "root, for networks and resource limits (sudo make ...)"]
    )


def _there(program: str) -> bool:
    places = (*HELPERS, "/usr/lib/cni", "/opt/cni/bin")
    return bool(shutil.which(program)) or any((Path(place) / program).exists() for place in places)


class Engine:
    """Calls podman. Call `settle` before the first container is started."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self.folder, self.tell = folder, tell
        folder.mkdir(parents=True, exist_ok=True)
        self.environment = {
            **os.environ,
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
        }
        (folder / "registries.conf").write_text('unqualified-search-registries = ["docker.io"]\n')
        self._choose("overlay", None, None)

    def _choose(self, driver: str, runtime: str | None, cgroups: str | None) -> None:
        files = min(OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        processes = PROCESSES if processes < 0 else min(PROCESSES, processes)
        lines = [
            "[containers]", f'default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]',
            "[engine]", 'events_logger = "file"', *([f'runtime = "{runtime}"'] if runtime else []),
            *([f'cgroup_manager = "{cgroups}"'] if cgroups else []),
            "[network]", f'network_config_dir = "{self.folder / "networks"}"',
        ]  # fmt: skip
        (self.folder / "containers.conf").write_text("\n".join(lines) + "\n")
        (self.folder / "storage.conf").write_text(
            f'[storage]\ndriver = "{driver}"\ngraphroot = "{self.folder / f"storage-{driver}"}"\nrunroot = "{self.folder / "run"}"\n'
        )

    def settle(self, provide: Callable[[], str]) -> None:
        """Choose a storage driver and a runtime that work here, or raise `Trouble`. `provide` stores an image and returns its name."""
        error = ""
        for driver in ("overlay", "vfs"):
            for runtime, cgroups in ((None, None), ("runc", "cgroupfs"), ("crun", "cgroupfs")):
                if runtime and not shutil.which(runtime):
                    continue
                self._choose(driver, runtime, cgroups)
                try:
                    image = provide()
                except Trouble as trouble:
                    error = str(trouble)
                    break  # because this storage driver does not work here
                process = self.podman("run", "--rm", "--pull=never", image, "true", check=False, seconds=120)
                if process.returncode == 0:
                    self.tell(f"containers run with {runtime or 'the default runtime'}, stored with {driver}")
                    return
                error = process.stderr.strip()[-400:]
        raise Trouble(f"podman is installed and cannot run a container: {error}")

    def podman(
        self, *arguments: str, check: bool = True, seconds: float = 300, feed: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        return self.call(["podman", *arguments], check=check, seconds=seconds, feed=feed)

    def call(
        self, command: Sequence[str], *, check: bool = True, seconds: float = 300, feed: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command. Raise `Trouble` with the end of its output if it fails or takes too long."""
        try:
            process = subprocess.run(
                command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=seconds,
                check=False, input=feed, stdin=subprocess.DEVNULL if feed is None else None,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise Trouble(f"`{' '.join(command[:6])} ...` took longer than {seconds:g} s") from error
        if check and process.returncode:
            output = (process.stderr.strip() or process.stdout.strip())[-1500:]
            raise Trouble(f"`{' '.join(command[:6])} ...` exited with {process.returncode}: {output}")
        return process

    def has(self, image: str) -> bool:
        return self.podman("image", "exists", image, check=False).returncode == 0

    def inspect(self, container: str) -> dict[str, Any]:
        """Return what podman knows of the container; empty if it does not exist."""
        process = self.podman("container", "inspect", container, check=False)
        entries: list[dict[str, Any]] = json.loads(process.stdout or "[]") if process.returncode == 0 else []
        return entries[0] if entries else {}

    def runs(self, container: str) -> bool:
        return bool(self.inspect(container).get("State", {}).get("Running"))

    def pid(self, container: str) -> int:
        return int(self.inspect(container).get("State", {}).get("Pid") or 0)

    def logs(self, container: str, lines: int = 25) -> str:
        process = self.podman("logs", "--tail", str(lines), container, check=False)
        return (process.stdout + process.stderr).strip()

    def execute(self, container: str, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.podman("exec", container, *command, check=check)

    def is_healthy(self, container: str) -> bool:
        """Run the container's own health check, because podman has no timer for it without systemd."""
        return self.podman("healthcheck", "run", container, check=False, seconds=60).returncode == 0

    def remove(self, prefix: str) -> None:
        """Remove all containers, volumes and networks whose names have this prefix. Never fails."""
        for kind, options in (("container", ["--all"]), ("volume", []), ("network", [])):
            with suppress(Trouble):
                listing = self.podman(
                    kind, "ls", *options, "--format", "{{.Names}}" if kind == "container" else "{{.Name}}"
                )
                mine = [name for name in listing.stdout.split() if name.startswith(prefix)]
                forced = ["--force", "--volumes", "--time", "0"] if kind == "container" else ["--force"]
                if mine:
                    self.podman(kind, "rm", *forced, *mine, check=False)


def wait(
    what: str, seconds: float, condition: Callable[[], bool], *, dead: Callable[[], str] = lambda: ""
) -> bool:
    """Wait for a condition and return whether it became true in time. `dead` returns a reason to raise `Trouble` instead."""
    deadline = time.monotonic() + seconds
    while not condition():
        if reason := dead():
            raise Trouble(f"waiting for {what}: {reason}")
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def free_ports(count: int) -> list[int]:
    import socket

    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def tails(engine: Engine, containers: Iterable[str]) -> str:
    return "\n".join(f"--- {name}\n{engine.logs(name)}" for name in containers)
