"""Expansion: from the parameters of a schedule to those of each job. The preview asks the same function as the firing.

Rows are read as they are at that moment: what was added since the last time is there by itself, what does not match any more is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, ClassVar
from uuid import UUID

from agents import input_schemas, scheduler_settings
from pipelines import data_sources, tables
from pipelines.data_sources import (
    BatchGate,
    DataSource,
    DataSourceError,
    Dimension,
    Estimate,
    Expand,
    Pacing,
    Params,
    ParamsError,
)
from pipelines.exceptions import PipelineError
from pipelines.tables import Values
from tenants.context import tenant_scope

SAMPLED = 5  # jobs that a preview shows, and whose parameters it checks


class ExpansionError(PipelineError):
    """The parameters cannot be expanded. `faults` names each by its path."""

    code: ClassVar[str] = "invalid_params"
    status: ClassVar[int] = 400

    def __init__(self, faults: list[dict[str, str]]) -> None:
        super().__init__("; ".join(f"{fault['path']}: {fault['message']}" for fault in faults))
        self.faults = faults

    def as_errors(self) -> list[dict[str, str]]:
        """As an execution keeps them."""
        return [
            {"message": f"{fault['path']}: {fault['message']}", "code": self.code} for fault in self.faults
        ]


@dataclass(frozen=True, slots=True)
class Planned:
    """One job that is to be: its place, its batch, when it starts at the earliest, and its parameters."""

    ordinal: int
    batch: int
    due_at: datetime
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """An expansion that is about to happen. Going through it twice reads twice."""

    literals: Mapping[str, Any]
    sources: Mapping[str, Values]
    expand: Expand
    pacing: Pacing
    asked_at: datetime

    @property
    def is_expanded(self) -> bool:
        return bool(self.sources)

    @property
    def waits_for_batches(self) -> bool:
        """Whether a batch starts only after the one before has ended."""
        return self.is_expanded and self.pacing.gate is BatchGate.COMPLETION

    def jobs(self) -> Iterator[Planned]:
        """Every job in order, as it is read. Raises `ExpansionError` when a source cannot be read to its end."""
        return (self.placed(ordinal, params) for ordinal, params in enumerate(self.inputs()))

    def inputs(self) -> Iterator[dict[str, Any]]:
        """The parameters of each job in order, as JSON has them. Raises `ExpansionError` as `jobs` does."""
        try:
            # How many there are is not asked: what is fetched from elsewhere would be fetched twice.
            dimensions = [Dimension(name, values, 0) for name, values in self.sources.items()]
            for params in data_sources.inputs(self.literals, dimensions, self.expand):
                yield {name: _plain(value) for name, value in params.items()}
        except (data_sources.ExpansionError, PipelineError) as error:
            raise ExpansionError([{"path": "params", "message": str(error)}]) from error

    def placed(self, ordinal: int, params: dict[str, Any]) -> Planned:
        """These parameters as the job with this number: its batch, and when that starts."""
        batch = ordinal // self.pacing.batch_size
        return Planned(
            ordinal, batch, self.asked_at + batch * timedelta(milliseconds=self.pacing.stagger_ms), params
        )

    def estimate(self) -> Estimate:
        """The numbers beforehand. Raises `ExpansionError`."""
        try:
            dimensions = [Dimension(name, values, values.count) for name, values in self.sources.items()]
            return data_sources.estimate(dimensions, self.expand, self.pacing)
        except (data_sources.ExpansionError, PipelineError) as error:
            raise ExpansionError([{"path": "params", "message": str(error)}]) from error

    def figures(self, jobs: int) -> dict[str, Any]:
        """What an execution remembers of its expansion."""
        if not self.is_expanded:
            return {"jobs": jobs}
        size = self.pacing.batch_size
        note = {} if jobs else {"note": "No row matched, so there was nothing to do."}
        return {
            "jobs": jobs,
            "batches": -(-jobs // size),
            "batch_size": size,
            "stagger_ms": self.pacing.stagger_ms,
            "expand": self.expand.value,
            "batch_gate": self.pacing.gate.value,
            "sources": list(self.sources),
            **note,
        }


def plan(tenant_id: UUID, definition: Mapping[str, Any], *, asked_at: datetime) -> Plan:
    """Read the parameters of a schedule's definition. Raises `ExpansionError` with every fault by its path."""
    params = _read(definition.get("params") or {})
    sources = _values(tenant_id, params.sources) if params.sources else {}
    try:
        expand, pacing = data_sources.agreed(
            [source.options for source in params.sources.values()], _default_pacing()
        )
    except data_sources.ExpansionError as error:
        raise ExpansionError([{"path": "params", "message": str(error)}]) from error
    return Plan(params.literals, sources, expand, pacing, asked_at)


def _read(params: Any) -> Params:
    if not isinstance(params, Mapping):
        raise ExpansionError([{"path": "params", "message": "must be an object"}])
    try:
        return data_sources.read_params(params)
    except ParamsError as error:
        raise ExpansionError(
            [{"path": fault.path, "message": fault.message} for fault in error.faults]
        ) from error


def _values(tenant_id: UUID, sources: Mapping[str, DataSource]) -> dict[str, Values]:
    """What each source stands for, unread. Raises `ExpansionError`."""
    with tenant_scope(tenant_id):
        catalogue = tables.catalogue_of(tenant_id)
    faults: list[dict[str, str]] = []
    found: dict[str, Values] = {}
    for name, source in sources.items():
        try:
            found[name] = tables.values_of(tenant_id, data_sources.resolve(source, catalogue))
        except DataSourceError as error:
            faults += [{"path": f"params.{name}", "message": str(fault)} for fault in error.faults]
        except PipelineError as error:
            faults.append({"path": f"params.{name}", "message": str(error)})
    if faults:
        raise ExpansionError(faults)
    return found


def _default_pacing() -> Pacing:
    settings = scheduler_settings.current()
    return Pacing(batch_size=settings.batch_size, stagger_ms=settings.stagger_delay_ms)


def _plain(value: Any) -> Any:
    """A value of a row as JSON has it: times and ids are text."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return str(value) if isinstance(value, UUID) else value


@dataclass(frozen=True, slots=True)
class Preview:
    """What would happen."""

    jobs: int
    batches: int
    ends_after: timedelta  # until the last batch starts
    sample: list[dict[str, Any]]
    errors: list[dict[str, str]]


def preview(tenant_id: UUID, definition: Mapping[str, Any], *, asked_at: datetime) -> Preview:
    """The numbers and the first jobs of an expansion, checked against the agent's input schema. Never raises for bad parameters."""
    try:
        planned = plan(tenant_id, definition, asked_at=asked_at)
        numbers = planned.estimate()
        sample = [job.params for job in islice(planned.jobs(), SAMPLED)]
    except ExpansionError as error:
        return Preview(0, 0, timedelta(), [], error.faults)
    return Preview(
        numbers.jobs,
        numbers.batches,
        numbers.last_offset,
        sample,
        _schema_faults(tenant_id, definition, sample),
    )


def _schema_faults(
    tenant_id: UUID, definition: Mapping[str, Any], sample: list[dict[str, Any]]
) -> list[dict[str, str]]:
    role = definition.get("agent_role")
    if not role:
        return []
    with tenant_scope(tenant_id):
        return [
            {"path": f"jobs[{index}].{fault['path']}", "message": fault["message"]}
            for index, params in enumerate(sample)
            for fault in input_schemas.faults(tenant_id, role, params)
        ]
