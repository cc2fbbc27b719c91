"""Signals that notify the apps above of changes of an activity. Declared here, received there.

Sent with `send` inside the transaction, so an error in a receiver rolls the change back. Receivers touch only the database.
"""

from django.dispatch import Signal

#: The activity reached a status of `states.SETTLED`. Carries `activity`, a `transitions.Moved`.
activity_settled = Signal()

#: An operator retried a failed activity. Carries `activity`, a `transitions.Moved`.
activity_reopened = Signal()

#: An activity has failed permanently and has a dead letter now. Carries `activity`, a row of Activity, and `dead_letter_id`.
activity_dead_lettered = Signal()

#: Queries the roles in the plan that the work belongs to. Carries `activity`, a row of Activity. Receivers return a set of roles, or None
#: if the work belongs to no plan.
planned_roles_asked = Signal()

#: Queries the done activities for which a gate of their pipeline run may still request changes. Carries `tenant_id` and `activity_ids`.
#: Receivers return a set of ids.
revisable_work_asked = Signal()

#: Queries the failed activities of steps whose pipeline run has a replay that works, so that a retry would do the same work twice. Carries
#: `tenant_id`, `activities`, and `together`: whether all are to be retried at once, which includes the work of a run with a newer replay
#: among them. Receivers return a set of ids.
replayed_work_asked = Signal()

#: Queries the activities of steps whose pipeline run was cancelled. Carries `tenant_id` and `activities`. Receivers return a set of ids.
cancelled_work_asked = Signal()

#: Queries the open gates of pipeline runs that are withdrawn when one of these gates rejects. Carries `tenant_id` and `activity_ids`.
#: Receivers return a set of ids.
gates_beside_asked = Signal()
