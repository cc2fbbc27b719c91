"""The social post writer: writes a post if it knows the direction, and asks people for one otherwise."""

from __future__ import annotations

from . import source, tools
from .job import Answer, Job
from .tools import reporter_of, waiting
from .words import folded, one_line

LONGEST_POST = 280  # characters, as the strictest network allows


def write(job: Job) -> Answer:
    """The skill: returns the sentence of the source that fits the direction best, cut to the length of a post."""
    direction = tools.chosen_direction(job) or job.word("direction")
    if not direction:
        return waiting(
            reporter_of(job).use(
                "request_human_review",
                question=f"Which direction shall the post for {job.word('network', 'the network')} take?",
                human_role="editor",
            )
        )
    post = _post(job, direction)
    return Answer(post, {"network": job.word("network"), "direction": direction, "characters": len(post)})


def _post(job: Job, direction: str) -> str:
    wanted = set(folded(direction).split())
    sentences = [one_line(sentence.text) for sentence in source.of_job(job).document().sentences()]
    best = max(sentences, key=lambda sentence: len(wanted & set(folded(sentence).split())), default="")
    tag = "#" + "".join(word.capitalize() for word in folded(direction).split())
    room = LONGEST_POST - len(tag) - 2
    return f"{best if len(best) <= room else best[: room - 1].rstrip() + '…'}\n\n{tag}"
