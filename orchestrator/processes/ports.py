"""Ports on which our processes are to listen: looked at before anything is started.

Somebody else's server on our port would answer "ready" in place of ours, with other logins and other data.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.embedded.ports import is_free
from orchestrator.processes.errors import PortsTaken

STEP = 10  # to the next one that is tried, as people do
HIGHEST = 65_535


def require_free(wanted: Mapping[str, int]) -> None:
    """`wanted` are ports by the variable that sets them. Raises `PortsTaken`, naming free ones that lie near."""
    taken = {variable: port for variable, port in wanted.items() if not is_free(port)}
    if taken:
        raise PortsTaken(taken, {variable: _near(port) for variable, port in taken.items()})


def _near(port: int) -> int:
    return next((each for each in range(port + STEP, HIGHEST, STEP) if is_free(each)), 0)
