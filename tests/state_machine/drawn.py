"""The strategies that the rules of the machine draw from."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.state_machine.tasks import BACKGROUND, NORMAL, URGENT, Rules
from tests.state_machine.world import ROLES

VOTERS = ("ada", "ben", "eve")
RULES = (
    None,
    None,
    Rules(on_timeout="approve"),
    Rules(on_timeout="reject"),
    Rules(quorum=2, voters=3),
    Rules(quorum=2, on_timeout="escalate", asked_by="ada"),
)

#: An index into any list. It is used modulo the length, so that a sequence stays possible while Hypothesis shortens it.
indexes = st.integers(min_value=0, max_value=30)
rules_of_decisions = st.sampled_from(RULES)
roles = st.sampled_from((*ROLES, None))  # None: a person
priorities = st.sampled_from((None, URGENT, NORMAL, BACKGROUND))
drawn_decisions = st.sampled_from(("approve", "approve", "reject"))
voters = st.sampled_from(VOTERS)
ends_of_calls = st.sampled_from(("result", "accepts", "again", "dies"))
dates = st.sampled_from((None, True, False))  # None: unchanged; else set, or removed
seldom = st.sampled_from((False, False, False, True))
#: What survives of a step: all; nothing, because the process dies before the commit; all but what follows the commit.
fates = st.sampled_from(("kept", "kept", "kept", "kept", "crash", "lost"))
