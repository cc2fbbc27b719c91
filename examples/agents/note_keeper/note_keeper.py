"""A command-line agent without a model and without dependencies: it keeps notes of what it was asked, over a whole conversation.

    echo "Bees fly far. Honey is sweet." | python examples/agents/note_keeper/note_keeper.py --output-format stream-json
    echo "And what else?" | python .../note_keeper.py --output-format stream-json --resume SESSION

It reads the task from its standard input, prints one JSON event per line as coding agents do, and remembers its conversations below HOME.
A line `Ask: ...` in the task makes it put the question to a person, with a tool of the orchestrator that started it.
"""

import argparse
import json
import os
import re
import sys
import urllib.request
import uuid
from pathlib import Path

UNKNOWN_SESSION = 3  # the exit code for a conversation that is not there
ASKED = 0


def main() -> int:
    options = arguments()
    task = sys.stdin.read()
    session = Session(options.resume)
    if options.resume and not session.exists():
        print(f"No conversation found with session ID: {options.resume}", file=sys.stderr)
        return UNKNOWN_SESSION
    say(type="system", subtype="init", session_id=session.id, model=options.model)
    session.add(task)
    for number, sentence in enumerate(sentences(task), 1):
        say(type="assistant", session_id=session.id, message=message(number, sentence, options.model))
    question = re.search(r"^Ask: (.+)$", task, re.MULTILINE)
    # The prompt that brings the answer contains the task and quotes the question.
    if question and task.count(question[1]) == 1 and ask(question[1]):
        say(type="result", subtype="success", is_error=False, result="I have asked.", session_id=session.id)
        return ASKED
    say(**result(session, options.model))
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output-format", choices=["stream-json"], default="stream-json")
    parser.add_argument("--resume", metavar="SESSION")
    parser.add_argument("--model", default="note-keeper-1")
    return parser.parse_args()


class Session:
    """A conversation: all that was ever asked in it, one JSON text per line."""

    def __init__(self, known: str | None) -> None:
        self.id = known or str(uuid.uuid4())
        self.file = (
            Path.home() / ".note-keeper" / f"{uuid.UUID(self.id) if not known else Path(known).name}.jsonl"
        )

    def exists(self) -> bool:
        return self.file.exists()

    def add(self, task: str) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as notes:
            notes.write(json.dumps(task) + "\n")

    def tasks(self) -> list[str]:
        return [json.loads(line) for line in self.file.read_text(encoding="utf-8").splitlines()]


def sentences(text: str) -> list[str]:
    return [sentence for sentence in re.split(r"(?<=[.!?])\s+", text.strip()) if sentence]


def message(number: int, sentence: str, model: str) -> dict:
    """A "token" is a word here."""
    usage = {"input_tokens": len(sentence.split()), "output_tokens": 1}
    return {
        "id": f"message-{number}",
        "model": model,
        "content": [{"type": "text", "text": "Noted."}],
        "usage": usage,
    }


def result(session: Session, model: str) -> dict:
    tasks = session.tasks()
    words = sum(len(task.split()) for task in tasks)
    notes = "\n".join(f"- {sentence}" for task in tasks for sentence in sentences(task))
    return {
        "type": "result", "subtype": "success", "is_error": False, "session_id": session.id, "model": model,
        "result": f"# Notes of {len(tasks)} tasks\n\n{notes}\n", "structured_output": {"tasks": len(tasks), "words": words},
        "usage": {"input_tokens": len(tasks[-1].split()), "output_tokens": len(notes.split())}, "total_cost_usd": 0.0001 * words,
    }  # fmt: skip


def ask(question: str) -> bool:
    """Put the question to a person. The run is over then: the orchestrator starts this program again with the answer."""
    url, token = os.environ["ORCHESTRATOR_CALLBACK_URL"], os.environ["ORCHESTRATOR_CALLBACK_TOKEN"]
    request = urllib.request.Request(
        f"{url}tools/request_human_review/",
        data=json.dumps({"question": question}).encode(),
        headers={
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "Idempotency-Key": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{url}{question}")),
        },
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bool(json.load(answer).get("stop"))


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    sys.exit(main())
