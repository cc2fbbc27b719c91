"""Many cases of one rule in one test."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

Check = Callable[..., None]


def in_one_test(
    names: str | tuple[str, ...], cases: Iterable[Any], ids: Callable[[Any], str] = repr
) -> Callable[[Check], Check]:
    """As `pytest.mark.parametrize`, but all cases are tried in one test, on one set of fixtures, and those that fail are told together.

    For cases that leave nothing behind: to make a database, a tenant and an engine for each takes longer than the case itself.
    """
    given = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

    def made(check: Check) -> Check:
        @wraps(check)
        def test(**fixtures: Any) -> None:
            wrong = {}
            for case in cases:
                values = case if len(given) > 1 else (case,)
                try:
                    check(**fixtures, **dict(zip(given, values, strict=True)))
                except AssertionError as error:
                    wrong[ids(case)] = str(error)
            assert not wrong, "\n".join(f"{case}: {why}" for case, why in wrong.items())

        wanted = inspect.signature(check)
        parameters = [each for name, each in wanted.parameters.items() if name not in given]
        test.__signature__ = wanted.replace(parameters=parameters)  # type: ignore[attr-defined]
        return test

    return made
