"""Every fenced snippet of the documents is run by another test or checked here, so that none becomes outdated unnoticed.

For a snippet that another test runs, this one only checks that the test exists and reads the document.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from django.core.management import get_commands, load_command_class

from agents.command_line import options
from pipelines.definition import parse
from tests.architecture import tree
from tests.document_reader import Block, blocks
from tests.integration.test_api_openapi import schema

#: Which test runs the snippets of a document, in which languages.
RUN_BY: dict[str, dict[str, str]] = {
    "clients/python/README.md": {"python": "clients/python/tests/test_client_readme.py"},
    "docs/agent-protocol.md": dict.fromkeys(("python", "sh"), "tests/integration/test_protocol_examples.py"),
    "docs/agents.md": dict.fromkeys(("console", "http"), "tests/integration/test_agents_guide.py"),
    "docs/events-and-webhooks.md": {"http": "tests/integration/test_events_guide.py"},
    "docs/http-api.md": {"sh": "tests/integration/test_curl_examples.py"},
    "docs/lifecycle.md": {"mermaid": "tests/integration/test_documentation_site.py"},
    "docs/mailboxes.md": {"sh": "tests/integration/test_curl_examples.py"},
    "docs/money.md": {"sh": "tests/integration/test_curl_examples.py"},
    "docs/pipelines.md": {"yaml": "tests/integration/test_example_pipelines.py"},
    "docs/quick-start.md": {"sh": "tests/integration/test_tutorial.py"},
    "docs/schedules.md": {"json": "tests/integration/test_schedule_examples.py"},
    "docs/tutorial.md": dict.fromkeys(("sh", "python", "yaml", "js"), "tests/integration/test_tutorial.py"),
    "examples/agents/README.md": {"python": "tests/integration/sample_agents/desk.py"},
}
HOW_TO = dict.fromkeys(("sh", "yaml"), "tests/integration/test_tutorial.py")
DOCUMENTS = [
    *(tree.ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((tree.ROOT / "docs").rglob("*.md")),
    *(tree.ROOT / name for name in RUN_BY if not name.startswith("docs/")),
]
#: Programs and variables with which a line of a shell snippet may begin.
PROGRAMS = {
    "git",
    "cd",
    "make",
    "celery",
    "python",
    "manage.py",
    "call",
    "curl",
    "pip",
    "TOKEN",
    "API",
    "ORCHESTRATOR_URL",
}

_COMMAND = re.compile(r"(?:python |\.venv/bin/python )manage\.py (?P<words>[^\n|;)>]+)")
_CALL = re.compile(
    r"^call(?: -X (?P<method>[A-Z]+))? \"?\$API(?P<path>/[^\s\"?]*)(?:\?(?P<query>[^\s\"]*))?\"?"
    r"(?:(?: +-H \"[^\"]*\")* +-d '(?P<body>[^']*)')?",
    re.MULTILINE,
)


def runner_of(block: Block) -> str | None:
    if block.remark == "no-run":
        return None
    known = RUN_BY.get(block.document, HOW_TO if block.document.startswith("docs/how-to/") else {})
    return known.get(block.language)


def unrun_blocks() -> list[Block]:
    return [block for document in DOCUMENTS for block in blocks(document) if runner_of(block) is None]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(tree.ROOT)))
def test_every_fence_names_its_language_and_is_closed(document: Path) -> None:
    fences = re.findall(r"^ *```(.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)

    assert [fence for fence in fences[::2] if not fence] == []
    assert [fence for fence in fences[1::2] if fence] == []
    assert len(blocks(document)) == len(fences) / 2


def test_the_test_that_runs_a_documents_snippets_reads_the_document() -> None:
    for document, runners in [*RUN_BY.items(), ("docs/how-to/", HOW_TO)]:
        for runner in set(runners.values()):
            text = (tree.ROOT / runner).read_text(encoding="utf-8")
            assert Path(document).name in text or (
                document == "clients/python/README.md" and "README" in text
            ), document


@pytest.mark.parametrize(
    "block", unrun_blocks(), ids=lambda block: f"{block.document}-{block.section}-{block.language}"
)
def test_a_snippet_that_no_test_runs_passes_the_check_of_its_language(block: Block) -> None:
    CHECKS[block.language](block)


def check_python(block: Block) -> None:
    """Check that it can be parsed, and that each file named by a comment contains the lines below it."""
    ast.parse(block.text)
    text = None
    for line in block.text.splitlines():
        if line.startswith("# ") and line.endswith(".py"):
            text = (tree.ROOT / line.removeprefix("# ")).read_text(encoding="utf-8")
        elif text is not None:
            assert line.partition("  #")[0] in text, line


def check_json(block: Block) -> None:
    data = json.loads(block.text)
    if "command" in data:
        options.read(data)  # of a command-line agent


def check_yaml(block: Block) -> None:
    data = yaml.safe_load(block.text)
    if "steps" in data:
        parse(data)


def check_shell(block: Block) -> None:
    """Check that it can be parsed, and that its programs, commands, options, addresses and bodies are valid."""
    text = re.sub(r"<[a-z ]+>", "placeholder", block.text)
    parsed = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert parsed.returncode == 0, parsed.stderr
    first_words = {
        line.split("=")[0].split("(")[0].split()[0]
        for line in re.sub(r"'[^']*'", "''", text).splitlines()
        if line.strip()
    }
    assert {
        word for word in first_words if word.rpartition("/")[2] not in PROGRAMS and not word.startswith("#")
    } == set()
    for target in re.findall(r"^make ([\w-]+)", text, re.MULTILINE):
        assert re.search(
            rf"^{target}:", (tree.ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        ), target
    for command in _COMMAND.finditer(text):
        check_command(shlex.split(command["words"]))
    for call in _CALL.finditer(text):
        check_call(call)


def check_command(words: list[str]) -> None:
    """Parse one of our commands with its own parser."""
    name, *arguments = words
    command = load_command_class(get_commands()[name], name)
    parser = command.create_parser("manage.py", name)
    parser.error = fail  # type: ignore[method-assign]
    parser.parse_args(arguments)


def fail(message: str) -> None:
    raise AssertionError(message)


def check_call(call: re.Match[str]) -> None:
    method = (call["method"] or ("POST" if call["body"] is not None else "GET")).lower()
    address = f"/api/v1{call['path']}"
    path = next(
        (path for path in schema()["paths"] if re.fullmatch(re.sub(r"\{\w+\}", r"[^/]+", path), address)),
        None,
    )
    assert path is not None, address
    operation = schema()["paths"][path][method]
    query = {part.partition("=")[0] for part in (call["query"] or "").split("&") if part}
    assert query <= {each["name"] for each in operation.get("parameters", ())}
    if call["body"] is not None:
        check_body(json.loads(call["body"]), method, path)


def check_body(body: Any, method: str, path: str) -> None:
    """Check that the operation accepts the body, and knows all its members."""
    expected = schema()["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"]
    jsonschema.Draft202012Validator({**expected, "components": schema()["components"]}).validate(body)
    if known := members_of(expected):
        assert set(body) <= known, set(body) - known
    elif "steps" in body:
        roles = {step["agent_role"] for step in body["steps"] if "agent_role" in step}
        # The schema leaves a pipeline open, as its own parser says more.
        parse(body, known_roles=roles, known_templates=())


def members_of(expected: dict[str, Any]) -> set[str]:
    if "$ref" in expected:
        expected = schema()["components"]["schemas"][expected["$ref"].rpartition("/")[2]]
    deeper = [*expected.get("oneOf", ()), *expected.get("anyOf", ()), *expected.get("allOf", ())]
    return set(expected.get("properties", ())).union(*(members_of(each) for each in deeper))


def check_diff(block: Block) -> None:
    """Check that the file named above the lines contains each added line and no removed one."""
    text = ""
    for line in block.text.splitlines():
        mark, words = line[0], line[1:].partition("  #")[0].strip()
        if mark == " ":
            text = (tree.ROOT / words).read_text(encoding="utf-8")
        else:
            assert (words in text) is (mark == "+"), line


CHECKS = {
    "python": check_python,
    "json": check_json,
    "yaml": check_yaml,
    "sh": check_shell,
    "diff": check_diff,
}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("python manage.py create_token --tenant acme --role king\n", "invalid choice"),
        ("python manage.py create_tenant acme --colour red\n", "unrecognized arguments"),
        ('call $API/activities/ -d \'{"nme": "A"}\'\n', "nme"),
        ('call $API/activities/ -d \'{"name": "A", "agnt_role": "qa"}\'\n', "agnt_role"),
        ("call $API/activitys/\n", "activitys"),
        ('call "$API/activities/?colour=red"\n', "colour"),
        ("make dmo\n", "dmo"),
        ("frobnicate\n", "frobnicate"),
    ],
)
def test_an_outdated_shell_snippet_fails_its_check(text: str, message: str) -> None:
    block = Block("docs/page.md", "", 1, "sh", "", "", text)

    with pytest.raises((AssertionError, jsonschema.ValidationError, argparse.ArgumentError), match=message):
        check_shell(block)
