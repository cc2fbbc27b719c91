"""The skills, by path."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from . import audit, calendar_planner, keywords, outline, post_writer, summary
from .brief_writer import BriefWriter
from .job import Answer, Job

Skill = Callable[[Job], Answer]


def all_skills() -> Mapping[str, Skill]:
    """Return a function for each path, with an empty session memory."""
    return {
        "keyword-researcher": keywords.research,
        "content-brief-writer": BriefWriter().write,
        "blog-writer": outline.write,
        "site-auditor": audit.audit,
        "report-writer": summary.write,
        "social-calendar-planner": calendar_planner.plan,
        "social-post-writer": post_writer.write,
    }
