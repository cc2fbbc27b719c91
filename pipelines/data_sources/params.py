"""The parameters of a job or a pipeline: which of them are data sources, and which are values as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.data_sources.faults import DataSourceError
from pipelines.data_sources.parsing import looks_like, parse, unescaped
from pipelines.data_sources.shapes import DataSource
from pipelines.definition.faults import DefinitionError, Fault, at

MOST_SOURCES = 5  # in the parameters of one schedule


class ParamsError(DefinitionError):
    """The parameters hold data sources that cannot be accepted. `faults` names each by path and character."""

    code = "invalid_params"


@dataclass(frozen=True, slots=True)
class Params:
    """Parameters, told apart."""

    literals: Mapping[str, Any]  # go into every job unchanged
    sources: Mapping[str, DataSource]  # make jobs


def read_params(params: Mapping[str, Any], *, path: str = "params") -> Params:
    """Tells the parameters apart. Text within lists and objects is always used as it is. Raises `ParamsError`."""
    faults: list[Fault] = []
    literals: dict[str, Any] = {}
    sources: dict[str, DataSource] = {}
    for name, value in params.items():
        if not looks_like(value):
            literals[name] = unescaped(value) if isinstance(value, str) else value
            continue
        try:
            sources[name] = parse(value)
        except DataSourceError as error:
            faults.extend(Fault(at(path, name), str(fault)) for fault in error.faults)
    if len(sources) > MOST_SOURCES:
        faults.append(Fault(path, f"must have at most {MOST_SOURCES} data sources"))
    if faults:
        raise ParamsError(faults)
    return Params(literals, sources)
