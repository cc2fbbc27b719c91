"""What the rules draw from."""

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

#: Which one of whatever there is: used modulo, so that a sequence stays possible while it is made shorter.
indexes = st.integers(min_value=0, max_value=30)
rules_of_decisions = st.sampled_from(RULES)
roles = st.sampled_from((*ROLES, None))  # None: a person
priorities = st.sampled_from((None, URGENT, NORMAL, BACKGROUND))
decisions = st.sampled_from(("approve", "approve", "reject"))
voters = st.sampled_from(VOTERS)
ends_of_calls = st.sampled_from(("result", "accepts", "again", "dies"))
dates = st.sampled_from((None, True, False))  # None: as it is; else set, or taken away
seldom = st.sampled_from((False, False, False, True))
#: How much of it is kept: all; nothing, since the process dies before the commit; all but what comes after the commit.
fates = st.sampled_from(("kept", "kept", "kept", "kept", "crash", "lost"))
