"""Every fenced snippet of the documents is run by a test or checked here: none can go stale unnoticed.

What another test runs is not run again; this one only sees to it that there is such a test and that it reads the document.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from django.core.management import get_commands, load_command_class
from drf_spectacular.generators import SchemaGenerator

from agents.command_line import options
from pipelines.definition import parse
from tests.architecture import tree
from tests.reading import Block, blocks

#: Which test runs the snippets of a document, in which languages.
RUN_BY: dict[str, dict[str, str]] = {
    "clients/python/README.md": {"python": "clients/python/tests/test_client_readme.py"},
    "docs/agent-protocol.md": dict.fromkeys(("python", "sh"), "tests/integration/test_protocol_examples.py"),
    "docs/agents.md": dict.fromkeys(("console", "http"), "tests/integration/test_agents_guide.py"),
    "docs/events-and-webhooks.md": {"http": "tests/integration/test_events_guide.py"},
    "docs/http-api.md": {"sh": "tests/integration/test_http_api_document.py"},
    "docs/lifecycle.md": {"mermaid": "tests/integration/test_documentation_site.py"},
    "docs/mailboxes.md": {"sh": "tests/integration/test_mailbox_document.py"},
    "docs/money.md": {"sh": "tests/integration/test_money_document.py"},
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
#: What a document may have a reader type, besides programs of ours.
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


def left_to_check() -> list[Block]:
    return [block for document in DOCUMENTS for block in blocks(document) if runner_of(block) is None]


@cache
def schema() -> dict[str, Any]:
    found: dict[str, Any] = SchemaGenerator(api_version="v1").get_schema(public=True)
    return json.loads(json.dumps(found, default=str))  # type: ignore[no-any-return]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(tree.ROOT)))
def test_every_fence_says_its_language_and_is_closed(document: Path) -> None:
    fences = re.findall(r"^ *```(.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)

    assert [fence for fence in fences[::2] if not fence] == []
    assert [fence for fence in fences[1::2] if fence] == []
    assert len(blocks(document)) == len(fences) / 2


def test_every_snippet_that_is_run_elsewhere_is_read_by_that_test() -> None:
    for document, runners in [*RUN_BY.items(), ("docs/how-to/", HOW_TO)]:
        for runner in set(runners.values()):
            text = (tree.ROOT / runner).read_text(encoding="utf-8")
            assert Path(document).name in text or (
                document == "clients/python/README.md" and "README" in text
            ), document


@pytest.mark.parametrize(
    "block", left_to_check(), ids=lambda block: f"{block.document}-{block.section}-{block.language}"
)
def test_every_snippet_that_nobody_runs_is_right_as_far_as_can_be_seen(block: Block) -> None:
    CHECKS[block.language](block)


def python_compiles(block: Block) -> None:
    ast.parse(block.text)


def json_fits(block: Block) -> None:
    data = json.loads(block.text)
    if "command" in data:
        options.read(data)  # of a command-line agent


def yaml_fits(block: Block) -> None:
    data = yaml.safe_load(block.text)
    if "steps" in data:
        parse(data)


def shell_is_right(block: Block) -> None:
    """It can be parsed; its programs, commands, options, addresses and bodies exist."""
    text = re.sub(r"<[a-z ]+>", "placeholder", block.text)
    parsed = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert parsed.returncode == 0, parsed.stderr
    begun = {
        line.split("=")[0].split("(")[0].split()[0]
        for line in re.sub(r"'[^']*'", "''", text).splitlines()
        if line.strip()
    }
    assert {
        word for word in begun if word.rpartition("/")[2] not in PROGRAMS and not word.startswith("#")
    } == set()
    for target in re.findall(r"^make ([\w-]+)", text, re.MULTILINE):
        assert re.search(
            rf"^{target}:", (tree.ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        ), target
    for found in _COMMAND.finditer(text):
        command_is_understood(shlex.split(found["words"]))
    for called in _CALL.finditer(text):
        call_is_understood(called)


def command_is_understood(words: list[str]) -> None:
    """Our commands with their options, as their own parsers see it."""
    name, *arguments = words
    command = load_command_class(get_commands()[name], name)
    parser = command.create_parser("manage.py", name)
    parser.error = fails  # type: ignore[method-assign]
    parser.parse_args(arguments)


def fails(message: str) -> None:
    raise AssertionError(message)


def call_is_understood(called: re.Match[str]) -> None:
    method = (called["method"] or ("POST" if called["body"] is not None else "GET")).lower()
    address = f"/api/v1{called['path']}"
    path = next(
        (path for path in schema()["paths"] if re.fullmatch(re.sub(r"\{\w+\}", r"[^/]+", path), address)),
        None,
    )
    assert path is not None, address
    operation = schema()["paths"][path][method]
    asked = {part.partition("=")[0] for part in (called["query"] or "").split("&") if part}
    assert asked <= {each["name"] for each in operation.get("parameters", ())}
    if called["body"] is not None:
        fits(json.loads(called["body"]), method, path)


def fits(body: Any, method: str, path: str) -> None:
    """The body is one that the operation takes, and has no member that it does not know."""
    wanted = schema()["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"]
    jsonschema.Draft202012Validator({**wanted, "components": schema()["components"]}).validate(body)
    if known := members_of(wanted):
        assert set(body) <= known, set(body) - known
    elif "steps" in body:
        roles = {step["agent_role"] for step in body["steps"] if "agent_role" in step}
        parse(
            body, known_roles=roles, known_templates=()
        )  # the schema leaves a pipeline open, as its own parser says more


def members_of(wanted: dict[str, Any]) -> set[str]:
    if "$ref" in wanted:
        wanted = schema()["components"]["schemas"][wanted["$ref"].rpartition("/")[2]]
    deeper = [*wanted.get("oneOf", ()), *wanted.get("anyOf", ()), *wanted.get("allOf", ())]
    return set(wanted.get("properties", ())).union(*(members_of(each) for each in deeper))


def diff_is_done(block: Block) -> None:
    """Each line that it adds stands in the file named above it, and none that it takes away does."""
    text = ""
    for line in block.text.splitlines():
        mark, words = line[0], line[1:].partition("  #")[0].strip()
        if mark == " ":
            text = (tree.ROOT / words).read_text(encoding="utf-8")
        else:
            assert (words in text) is (mark == "+"), line


CHECKS = {
    "python": python_compiles,
    "json": json_fits,
    "yaml": yaml_fits,
    "sh": shell_is_right,
    "diff": diff_is_done,
}


@pytest.mark.parametrize(
    ("text", "told"),
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
def test_a_snippet_that_went_stale_is_noticed(text: str, told: str) -> None:
    block = Block("docs/page.md", "", 1, "sh", "", "", text)

    with pytest.raises((AssertionError, jsonschema.ValidationError, argparse.ArgumentError), match=told):
        shell_is_right(block)
