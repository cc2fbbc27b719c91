"""Periods: a month of a deliverable, from its start over the plan to the end of its last run.

`start_new_periods` is the monthly job. What follows is told by signals of activities (`pipelines.receivers`) and counted by
`pipelines.period_counts`.
"""

from pipelines.periods.planning import (
    ask_again,
    follow_planner,
    heed_dead_letter,
    planner_changed,
    take_up,
)
from pipelines.periods.plans import PlanInvalid
from pipelines.periods.starting import start_new_periods, start_period

from .starting import cancel_period

__all__ = (
    "PlanInvalid",
    "ask_again",
    "cancel_period",
    "follow_planner",
    "heed_dead_letter",
    "planner_changed",
    "start_new_periods",
    "start_period",
    "take_up",
)
