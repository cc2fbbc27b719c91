"""What people decide: gates behind an agent's result, reviews that an agent asked for, and approvals over many activities.

Each is an activity of a person. One decision closes it; of several at once one wins, and the others learn who decided what and when.
Where several must agree, votes are counted under the item's lock until the outcome is certain.
"""

from activities.approvals.deciding import approve, decide, reject
from activities.approvals.editing import why_not_edit
from activities.approvals.gates import open_gate
from activities.approvals.linking import (
    NewApproval,
    drop_links_of,
    link,
    lock_concerned,
    lock_concerned_by,
    open_approval,
    settle_links,
)
from activities.approvals.reading import Question, questions
from activities.approvals.revisions import revise, revision_of
from activities.approvals.withdrawing import withdraw

__all__ = (
    "NewApproval",
    "Question",
    "approve",
    "decide",
    "drop_links_of",
    "link",
    "lock_concerned",
    "lock_concerned_by",
    "open_approval",
    "open_gate",
    "questions",
    "reject",
    "revise",
    "revision_of",
    "settle_links",
    "why_not_edit",
    "withdraw",
)
