"""Prompts as agents get them, for each wake reason and for combinations: `python -m tests.unit.golden_prompts` writes them.

The files are meant to be read. A test compares them, so that a change of a template shows its effect on every prompt.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "prompts"

TASK: dict[str, Any] = {
    "name": "Write the article",
    "description": "Write 800 words about keeping bees on a roof.\n\nThe reader has never seen a hive.",
}
ALL: dict[str, Any] = {
    **TASK,
    "instructions": "You write for people who read on a phone.\nShort paragraphs, no jargon.",
    "params": {"keyword": "urban beekeeping", "words": 800, "avoid": ["sting", "Völkersterben"]},
    "context": [("Acme Honey", "# Acme Honey\n\nSells hives to beginners.")],
    "inputs": {
        "content": "## Brief\n\n1. Why a roof\n2. The first spring",
        "data": {"outline": ["Why a roof", "The first spring"]},
    },
}

REJECTION = {
    "reason": "rejection",
    "rejection_ref": "0190",
    "rejected_output": {"content": "Bees are insects.", "data": {"words": 3}},
    "reviewer_notes": "Too short. Say <b>how</b> to begin.",
}
UNBLOCKED = {
    "reason": "unblocked",
    "blocker_type": "channel_auth_expired",
    "blocker_message": "The blog refuses our token.",
    "blocker_resolution": "Renewed it. Try again.",
    "blocker_outcome": "done",
}
SUBTASK = {
    "reason": "subtask_completed",
    "subtask": "0191",
    "subtask_name": "Draw the hive",
    "subtask_outcome": "done",
    "subtask_output_ref": "0192",
    "subtask_output": {"content": "A drawing of a hive.", "data": {"file": "hive.svg"}},
    "subtask_error": None,
}
REVIEW = {
    "reason": "review_approved",
    "review_approved": True,
    "outcome": "approved",
    "question": "May I name the neighbour?",
    "reviewer_feedback": "By the first name only.",
}
FEEDBACK = {
    "reason": "review_feedback",
    "review_approved": False,
    "outcome": "rejected",
    "question": "May I name the neighbour?",
    "reviewer_feedback": "No. Leave the neighbour out.",
}
APPROVAL = {
    "reason": "review_approved",
    "review_approved": True,
    "outcome": "approved",
    "approval": "0193",
    "approval_type": "content_direction",
    "title": "Which angle for October?",
    "chosen_option": "The first spring",
    "reviewer_feedback": "",
}
MESSAGE = {
    "reason": "message",
    "item": "0194",
    "mailbox": "session-1",
    "kind": "message",
    "source": "user",
    "text": "Leave the neighbour out, please.",
    "content": None,
}
NOTIFICATION = {
    **MESSAGE,
    "kind": "task_notification",
    "source": "system",
    "text": "The task 'Draw the hive' is completed.",
    "content": {"task_id": "0195", "status": "completed", "result": "A drawing of a hive."},
}

CASES: dict[str, dict[str, Any]] = {
    "new_task": {**ALL, "wakes": [{"reason": "new_task"}]},
    "new_task_with_nothing_else": {"name": "Write", "description": "", "wakes": [{"reason": "new_task"}]},
    "new_task_after_several_steps": {
        **TASK,
        "inputs": {
            "content": None,
            "data": None,
            "steps": {
                "keywords": {"content": None, "data": ["bees", "roof"]},
                "brief": {"content": "1. Why a roof", "data": None},
            },
        },
        "wakes": [{"reason": "new_task"}],
    },
    "new_task_from_another_agent": {**ALL, "asked_by": "seo", "wakes": [{"reason": "new_task"}]},
    "scheduled": {**ALL, "wakes": [{"reason": "scheduled"}]},
    "rejection": {**ALL, "wakes": [REJECTION]},
    "rejection_whose_output_is_gone": {**TASK, "wakes": [{**REJECTION, "rejected_output": None}]},
    "unblocked": {**ALL, "wakes": [UNBLOCKED]},
    "unblocked_without_a_resolution": {
        **TASK,
        "wakes": [
            {**UNBLOCKED, "blocker_outcome": "cancelled", "blocker_resolution": "We gave the blog up."}
        ],
    },
    "subtask_completed": {**ALL, "wakes": [SUBTASK]},
    "subtask_completed_by_a_failure": {
        **TASK,
        "wakes": [
            {
                **SUBTASK,
                "subtask_outcome": "needs_review",
                "subtask_output": None,
                "subtask_error": {"code": "agent_timeout", "message": "It took too long."},
            }
        ],
    },
    "subtask_completed_by_a_rejection": {
        **TASK,
        "wakes": [{**SUBTASK, "subtask_outcome": "rejected", "subtask_output": None}],
    },
    "subtask_completed_by_a_cancellation": {
        **TASK,
        "wakes": [
            {
                **SUBTASK,
                "subtask_outcome": "cancelled",
                "subtask_output": None,
                "subtask_notes": "Too dear. Describe the hive in words.",
            }
        ],
    },
    "review_approved": {**ALL, "wakes": [REVIEW]},
    "review_approved_by_default": {
        **TASK,
        "wakes": [{**REVIEW, "outcome": "expired", "reviewer_feedback": None}],
    },
    "review_approved_with_an_option": {**TASK, "wakes": [APPROVAL]},
    "new_task_after_an_approval": {**TASK, "wakes": [{"reason": "new_task"}, APPROVAL]},
    "new_task_after_an_approval_and_a_refusal": {
        **TASK,
        "wakes": [{"reason": "new_task"}, APPROVAL, {**APPROVAL, **FEEDBACK}],
    },
    "two_approvals": {**TASK, "wakes": [REVIEW, APPROVAL]},
    "approval_then_unblocked": {**TASK, "wakes": [APPROVAL, UNBLOCKED]},
    "review_feedback": {**ALL, "wakes": [FEEDBACK]},
    "review_feedback_of_an_approval": {
        **TASK,
        "wakes": [
            {
                **APPROVAL,
                "reason": "review_feedback",
                "outcome": "rejected",
                "chosen_option": None,
                "reviewer_feedback": "Neither of them.",
            }
        ],
    },
    "review_feedback_by_nobody": {
        **TASK,
        "wakes": [{**FEEDBACK, "outcome": "expired", "reviewer_feedback": ""}],
    },
    "review_feedback_to_a_withdrawn_question": {
        **TASK,
        "wakes": [{**FEEDBACK, "outcome": "withdrawn", "reviewer_feedback": "Asked twice."}],
    },
    "rejection_then_unblocked": {**ALL, "wakes": [REJECTION, UNBLOCKED]},
    "new_task_then_two_subtasks": {
        **TASK,
        "wakes": [{"reason": "new_task"}, SUBTASK, {**SUBTASK, "subtask_name": "Count the bees"}],
    },
    "message": {**TASK, "wakes": [MESSAGE]},
    "messages": {**TASK, "wakes": [MESSAGE, {**MESSAGE, "source": "hook", "text": "The roof is wet."}]},
    "message_that_a_task_has_ended": {**TASK, "wakes": [NOTIFICATION]},
    "message_that_people_have_decided": {
        **TASK,
        "wakes": [
            {
                **NOTIFICATION,
                "kind": "approval_result",
                "text": "Approve: the angle",
                "content": ["autumn", 2],
            }
        ],
    },
    "message_of_an_action": {
        **TASK,
        "wakes": [{**MESSAGE, "kind": "overlay_action", "text": "", "content": 7}],
    },
    "feedback_then_scheduled": {**ALL, "wakes": [FEEDBACK, {"reason": "scheduled"}]},
}


def rendered(case: str) -> str:
    """Return the prompt of a case, with its random marker replaced."""
    from activities.execution import prompt
    from agents.contracts import ContextFile

    parts = dict(CASES[case])
    parts["context"] = [ContextFile(*file) for file in parts.get("context", ())]
    return re.sub(r"\b[0-9a-f]{16}(?=>>)", "MARKER", prompt.build(**parts))


def main() -> None:
    import conftest  # noqa: F401 - sets Django up

    for file in FOLDER.glob("*.md"):
        file.unlink()
    for case in CASES:
        (FOLDER / f"{case}.md").write_text(rendered(case), encoding="utf-8")
    sys.stdout.write(f"{len(CASES)} prompts written to {FOLDER}.\n")


if __name__ == "__main__":
    main()
