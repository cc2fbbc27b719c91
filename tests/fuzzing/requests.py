"""Sends generated requests of every operation to the server in this process, and records answers that violate the schema."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import schemathesis
from django.core.signals import got_request_exception
from django.core.wsgi import get_wsgi_application
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.openapi import from_dict
from schemathesis.specs.openapi import checks as conformance

from tests.api_objects import ApiObjects

#: The checks of every answer. Other checks need what a schema does not say, such as whether a valid id exists.
CHECKS = [
    schemathesis.checks.not_a_server_error,
    conformance.status_code_conformance,
    conformance.content_type_conformance,
    conformance.response_headers_conformance,
    conformance.response_schema_conformance,
]


#: Requests a page of events, because a stream does not end.
PAGED = {"Accept": "application/json"}


@dataclass
class Findings:
    """Answers that violate the schema, each kind once per operation."""

    violations: dict[tuple[str, str], str] = field(default_factory=dict)
    requests: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def add(self, operation: str, error: Exception, case: Case, answer: Any) -> None:
        sent = f"{case.method} {case.formatted_path} {case.query} {case.body!r:.600}"
        details = self.broken.pop() if answer.status_code == 500 and self.broken else answer.text[:400]
        key = (operation, f"{type(error).__name__}: {answer.status_code}")
        self.violations.setdefault(key, f"{operation}: {error}\n  {sent}\n  {details}")

    def note(self, **kwargs: Any) -> None:
        """Receive Django's signal that a request has raised an exception."""
        self.broken.append(traceback.format_exc()[-1500:])


def fuzz(
    document: dict[str, Any], *, callers: Callable[[str], Sequence[dict[str, str]]], objects: ApiObjects, examples: int
) -> Findings:  # fmt: skip
    """Send `examples` valid and half as many malformed requests of every operation, the same in every run. With a single example there are
    no malformed ones, which `test_malformed_bodies` sends.

    All callers of a path, given by headers, send each request, because generating a request takes longer than answering it.
    """
    findings = Findings()
    got_request_exception.connect(findings.note)  # until the findings are garbage-collected
    api = from_dict(document)
    application = get_wsgi_application()
    for operation in _operations(api):
        senders = callers(operation.path)
        _fuzz_one(operation, GenerationMode.POSITIVE, examples, application, senders, objects, findings)
        if malformed := examples // 2:
            _fuzz_one(operation, GenerationMode.NEGATIVE, malformed, application, senders, objects, findings)
    return findings


def _operations(api: Any) -> Iterator[Any]:
    for result in api.get_all_operations():
        yield result.ok()


def _fuzz_one(
    operation: Any, mode: GenerationMode, count: int, application: Any, callers: Sequence[dict[str, str]], objects: ApiObjects,
    findings: Findings,
) -> None:  # fmt: skip
    existing = objects.parameters_of(operation.path)
    paged = PAGED if operation.path.endswith("/events/") else {}

    @settings(
        max_examples=count, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Case) -> None:
        findings.requests += 1
        if existing and findings.requests % 4 and isinstance(case.path_parameters, dict):
            case.path_parameters = {
                **case.path_parameters,
                **{k: v for k, v in existing.items() if k in case.path_parameters},
            }
        for headers in callers:
            answer = case.call(app=application, headers=headers | paged)
            findings.statuses[answer.status_code] = findings.statuses.get(answer.status_code, 0) + 1
            try:
                case.validate_response(answer, checks=CHECKS)
            except FailureGroup as failures:
                for failure in failures.exceptions:
                    findings.add(operation.label, failure, case, answer)

    try:
        send()
    except Exception as error:
        if type(error).__name__ not in ("Unsatisfiable", "FailedHealthCheck"):
            raise


def number_of_examples(default: int) -> int:
    return int(os.environ.get("FUZZ_EXAMPLES", default))
