"""What people are asked for: approvals, reviews, blockers and tasks, their rules and deadlines.

Each is an activity of a person. What waits for the answer starts when all that it waits for has been answered. A rejection becomes a
revision in `approvals` (`submit_revisions`); what that means for a pipeline is in `pipelines.progression`.
"""
