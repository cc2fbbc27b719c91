"""Votes, where several people must agree: one each, whatever they come with.

Counted under the lock of the item, so two last votes at once see each other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from activities import transitions
from activities.decision_rules import DecisionRules, Voter
from activities.exceptions import AlreadyVoted
from activities.models import Activity, Vote
from activities.states import Status


@dataclass(frozen=True, slots=True)
class Ballot:
    """What the votes have come to."""

    decision: str
    notes: str
    chosen_option: str | None


def cast(
    item: Activity, rules: DecisionRules, decision: str, by: Voter, *, notes: str, chosen_option: str | None
) -> Ballot | None:
    """Count a person's vote about a locked item; the outcome once it is certain. Raises `AlreadyVoted` for a second vote."""
    vote, is_new = Vote.objects.get_or_create(
        tenant_id=item.tenant_id, activity_id=item.pk, voter=by.identity,
        defaults={"actor": by.actor, "decision": decision, "chosen_option": chosen_option, "notes": notes},
    )  # fmt: skip
    if not is_new:
        raise AlreadyVoted(item.pk, decision, item.status, vote)
    if item.status == Status.CREATED:
        transitions.apply(item.pk, "take_up", actor=by.actor, started_at=transitions.NOW)
    of_people = Vote.objects.for_tenant(item.tenant_id).filter(activity_id=item.pk, voter__startswith="user:")
    given = list(of_people.order_by("at", "pk"))
    return _counted(given, rules)


def _counted(given: list[Vote], rules: DecisionRules) -> Ballot | None:
    counts = Counter(vote.decision for vote in given)
    decision = rules.outcome(counts["approve"], counts["reject"])
    if decision is None:
        return None
    agreeing = [vote for vote in given if vote.decision == decision]
    chosen = Counter(vote.chosen_option for vote in agreeing if vote.chosen_option)
    # The option with the most votes; of equal ones the first that was voted for.
    option = chosen.most_common(1)[0][0] if chosen else None
    notes = "\n\n".join(f"{vote.actor}: {vote.notes}" for vote in agreeing if vote.notes)
    return Ballot(decision, notes, option)
