"""An installed wheel does what a checkout does: `orchestrator demo` runs to its end in an empty folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.util import cache_from_source
from pathlib import Path

from tests.architecture import tree

RUN = "import sys; from orchestrator.command import main; sys.argv[0] = 'orchestrator'; main()"
SERVERS = (
    "DATABASE_URL", "REDIS_URL", "MONGODB_URI", "CELERY_BROKER_URL", "DJANGO_SETTINGS_MODULE", "ORCHESTRATOR_HOME"
)  # fmt: skip


def test_the_demonstration_runs_from_a_wheel_and_keeps_its_files_in_the_working_directory(
    tmp_path: Path,
) -> None:
    build = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path))
    subprocess.run(build, cwd=tree.ROOT, check=True, capture_output=True)
    site, folder = tmp_path / "site", tmp_path / "empty"
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    _use_what_is_compiled(site)
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in SERVERS}

    ended = subprocess.run(
        [sys.executable, "-c", RUN, "demo"],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=240,
    )

    if sys.pycache_prefix:  # where nothing else deletes what was compiled
        shutil.rmtree(f"{sys.pycache_prefix}{site}")
    assert (ended.returncode, "Done in" in ended.stdout) == (0, True), ended.stdout[-2_000:] + ended.stderr
    assert any((folder / "var" / "demo").iterdir())


def _use_what_is_compiled(site: Path) -> None:
    """Give modules that equal those of the checkout their compiled code, because five processes would compile them at the same time."""
    for module in site.rglob("*.py"):
        source = tree.ROOT / module.relative_to(site)
        if source.exists() and source.read_bytes() == module.read_bytes():
            shutil.copystat(source, module)  # compiled code belongs to a source of this time and size
            compiled, ours = Path(cache_from_source(str(source))), Path(cache_from_source(str(module)))
            if compiled.exists():
                ours.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(compiled, ours)
