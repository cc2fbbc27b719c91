"""Deliverables and their periods: each month of one, from its start over the plan to the end of its last run.

What follows when an activity or a run of a period ends is started by signals of activities (`pipelines.receivers`) and counted by
`pipelines.period_counts`.

editing      deliverables themselves: created, changed and deleted
starting     the periods of a month, and the end of one that is cancelled
planning     the planner's question, and from its answer to runs
plans        the form of a plan, and every fault of one
monthly_job  at the start of each month
"""

from .editing import change, create, delete, unknown_pipelines
from .planning import ask_again, follow_planner, heed_dead_letter, planner_changed, take_up
from .plans import PlanInvalid
from .starting import cancel_period, start_new_periods, start_period

__all__ = (
    "PlanInvalid",
    "ask_again",
    "cancel_period",
    "change",
    "create",
    "delete",
    "follow_planner",
    "heed_dead_letter",
    "planner_changed",
    "start_new_periods",
    "start_period",
    "take_up",
    "unknown_pipelines",
)
