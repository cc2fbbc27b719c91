"""The Python processes of the project: their table, and a supervisor that runs them on one machine.

`make up`, `make demo` and the tests use the supervisor. Containers run one process each, from the same table,
with `python -m orchestrator.processes NAME`. Nothing here imports Django.
"""

from orchestrator.processes.specs import ProcessSpec, standard_processes, system_worker
from orchestrator.processes.supervisor import EndedProcess, Supervisor, SupervisorError
