"""Checks many cases of one rule in one test."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

Check = Callable[..., None]


def in_one_test(
    names: str | tuple[str, ...], cases: Iterable[Any], ids: Callable[[Any], str] | Iterable[str] = repr
) -> Callable[[Check], Check]:
    """Check all cases in one test with one set of fixtures, and report all that fail. Otherwise like `pytest.mark.parametrize`.

    Only for cases that do not change the outcome of each other. It saves a database, a tenant and an engine for each case.
    """
    arguments = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    named = [(ids(case), case) for case in cases] if callable(ids) else list(zip(ids, cases, strict=True))

    def decorate(check: Check) -> Check:
        @wraps(check)
        def test(**fixtures: Any) -> None:
            failures = {}
            for name, case in named:
                values = case if len(arguments) > 1 else (case,)
                try:
                    check(**fixtures, **dict(zip(arguments, values, strict=True)))
                except AssertionError as error:
                    failures[name] = str(error)
            assert not failures, "\n".join(f"{case}: {why}" for case, why in failures.items())

        signature = inspect.signature(check)
        parameters = [each for name, each in signature.parameters.items() if name not in arguments]
        test.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return test

    return decorate
