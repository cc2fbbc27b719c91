"""What is sent to ask for an approval and to decide one."""

from __future__ import annotations

from activities.api.decisions import LONGEST_NOTES
from activities.bodies.rules import RulesSerializer
from activities.bodies.tools import ApprovalRequestSerializer
from agents.api.strict import OPTIONAL, OneOf, StrictSerializer, Text

DECISIONS = {"approved": "approve", "rejected": "reject"}


class NewApprovalSerializer(ApprovalRequestSerializer, RulesSerializer):
    """A question about any number of activities. Those that have not started wait for the answer."""


class VerdictSerializer(StrictSerializer):
    """An answer. Where several must agree it is one voice."""

    decision = OneOf(choices=list(DECISIONS))
    notes = Text(allow_blank=True, trim_whitespace=False, max_length=LONGEST_NOTES, **OPTIONAL)
    chosen_option = Text(max_length=200, help_text="One of the options, if there are any.", **OPTIONAL)
