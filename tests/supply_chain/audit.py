"""`make audit`: known vulnerabilities of pinned packages, risky code of ours, and secrets in the tree.

Exits 0 if all three find nothing, 1 if one of them finds something, and 2 if nothing was found but something could not be checked, such
as advisories on a machine without access to them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UVX = [str(Path(sys.executable).parent / "uvx"), "-q", "--from"]
PIP_AUDIT, BANDIT, SCANNER = "pip-audit==2.10.1", "bandit[toml]==1.9.4", "detect-secrets==1.5.0"
APPS = ("orchestrator", "console", "pipelines", "activities", "agents", "tenants")

CLEAN, FOUND, UNKNOWN = 0, 1, 2
BASELINE = ".secrets.baseline"
LINES_MOVED = 3  # the exit status of detect-secrets-hook if it found nothing new and rewrote line numbers


def vulnerabilities() -> int:
    """Look up advisories about the packages of requirements/embedded.txt, in the pinned versions."""
    options = ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "-f", "json"]
    process = _run(PIP_AUDIT, "pip-audit", *options, "-r", "requirements/embedded.txt")
    try:
        packages = json.loads(process.stdout)["dependencies"]
    except (ValueError, KeyError):
        return _unknown(f"advisories could not be looked up: {process.stderr.strip().splitlines()[-1:]}")
    for package in packages:
        for advisory in package.get("vulns", ()):
            print(
                f"  {package['name']} {package['version']}: {advisory['id']}, fixed in {advisory['fix_versions']}"
            )
    if any(package.get("vulns") for package in packages):
        return FOUND
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if skipped:
        return _unknown(f"the source of advisories does not know {len(skipped)} of {len(packages)} packages")
    print(f"  {len(packages)} packages, no advisory")
    return CLEAN


def risky_code() -> int:
    """Run bandit on the apps. The skipped rules, with reasons, are in pyproject.toml."""
    return _report(_run(BANDIT, "bandit", "-q", "-c", "pyproject.toml", "-r", *APPS), "no finding")


def secrets() -> int:
    """Look for secrets in files of git that are not in `.secrets.baseline`, which lists what was reviewed.

    The scanner rewrites the baseline when lines have moved, and exits 3 then, so it gets a copy.
    """
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in files.splitlines() if not name.startswith("requirements/") and name != BASELINE]
    with tempfile.TemporaryDirectory() as folder:
        baseline = Path(folder, BASELINE)
        shutil.copy(ROOT / BASELINE, baseline)
        process = _run(SCANNER, "detect-secrets-hook", "--baseline", str(baseline), *names)
    if process.returncode == LINES_MOVED:
        process.returncode = 0
    return _report(process, f"{len(names)} files, nothing new")


def _run(package: str, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*UVX, package, program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def _report(process: subprocess.CompletedProcess[str], nothing: str) -> int:
    if process.returncode == 0:
        print(f"  {nothing}")
        return CLEAN
    if not process.stdout.strip():
        return _unknown(f"the tool could not be run: {process.stderr.strip().splitlines()[-1:]}")
    print(process.stdout)
    return FOUND


def _unknown(reason: str) -> int:
    print(f"  NOT CHECKED: {reason}")
    return UNKNOWN


def main() -> int:
    parts: dict[str, Callable[[], int]] = {
        "known vulnerabilities": vulnerabilities,
        "risky code": risky_code,
        "secrets": secrets,
    }
    outcomes = []
    for title, part in parts.items():
        print(title, flush=True)
        outcomes.append(part())
    return FOUND if FOUND in outcomes else max(outcomes)


if __name__ == "__main__":
    sys.exit(main())
