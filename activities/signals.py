"""Signals that tell the apps above what happened to an activity. Declared here, received there.

Sent with `send` inside the transaction: a receiver that fails undoes what it was told about. Receivers touch only the database.
"""

from django.dispatch import Signal

#: The activity reached a status of `states.SETTLED`. Carries `activity`, a `transitions.Moved`.
activity_settled = Signal()

#: An operator started a failed activity again. Carries `activity`, a `transitions.Moved`.
activity_reopened = Signal()

#: An activity has failed for good and was put among the dead letters. Carries `activity`, a row of Activity, and `dead_letter_id`.
activity_buried = Signal()

#: Which roles have people put into the plan that the work is part of? Carries `activity`, a row of Activity. Answered with a set of roles,
#: or None where the work is part of no plan.
planned_roles_asked = Signal()
