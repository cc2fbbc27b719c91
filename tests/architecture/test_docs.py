"""The documents agree with the code: modules, statuses, settings, commands, paths and links."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from django.core.management import get_commands
from django.urls import reverse

from activities import states
from activities.management.commands import draw_lifecycle
from agents.models import Adapter
from console.navigation import PAGES
from tests.architecture import tree
from tests.cases import in_one_test
from tests.chaos.faults import KINDS
from tests.document_reader import blocks

DOCS = tree.ROOT / "docs"
DOCUMENTS = (
    *(tree.ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(DOCS.rglob("*.md")),
)
NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")  # characters of a heading that GitHub removes from its anchor

PRAISE = r"blazing|seamless\w*|cutting[- ]edge|state[- ]of[- ]the[- ]art|revolutionary|effortless\w*|world[- ]class"

#: Words that look like a path or a command of ours and are not.
ELSEWHERE = {"CONTEXT.md", "docs/adr/", "path/to/text.md"}


def _name(path: Path) -> str:
    return str(path.relative_to(tree.ROOT))


def _text(name: str) -> str:
    return (tree.ROOT / name).read_text(encoding="utf-8")


def _code_spans(path: Path) -> Iterator[str]:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    yield from re.findall(r"`([^`\n]+)`", text)


def _verbs_of(call: ast.Call) -> Iterator[str]:
    """Yield the texts among the arguments of a call that applies or prepares a transition.

    The verbs of a gate are built from a decision.
    """
    if tree.called_name(call) in {"apply", "apply_many", "suspend", "_verb", "_decide", "decide"}:
        for argument in call.args:
            for node in ast.walk(argument):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value
                    yield f"{node.value}_gate"


def _headings(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {NOT_IN_ANCHORS.sub("", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_lifecycle_page_agrees_with_the_state_table() -> None:
    before = _text("docs/lifecycle.md")

    assert before == draw_lifecycle.renew_sections(before), "run: manage.py draw_lifecycle"
    assert set(re.findall(r"<!-- generated: (\w+) -->", before)) == set(draw_lifecycle.SECTIONS)


def test_the_lifecycle_page_names_the_verbs_that_are_not_used_yet() -> None:
    used = {text for module in tree.modules() for call in module.calls() for text in _verbs_of(call)}
    unused = [verb for verb in states.TRANSITIONS if verb not in used]
    sentence = re.search(r"Nothing asks for these yet: (.+)\.$", _text("docs/lifecycle.md"), re.MULTILINE)

    assert (sentence[1] if sentence else "") == ", ".join(f"`{verb}`" for verb in unused)


def test_every_security_requirement_says_whether_it_holds_and_which_tests_prove_it() -> None:
    """Each of the 35 is listed once, with existing files. One that does not hold, or only in part, says what is missing."""
    rows = re.findall(
        r"^\| (S\d\d) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", _text("docs/security.md"), re.MULTILINE
    )

    assert [number for number, *_ in rows] == [f"S{number:02}" for number in range(1, 36)]
    for number, _, holds, tests in rows:
        files = re.findall(r"`(tests/[^`]+)`", tests)
        assert files, number
        assert [name for name in files if not (tree.ROOT / name).exists()] == [], number
        assert holds in ("yes", "in part", "no"), number
        assert holds == "yes" or ";" in tests or ":" in tests, f"{number} does not say what is missing"


@pytest.mark.parametrize(
    "kind", [states.Status, states.WakeReason, states.LinkKind, states.RunStatus, states.WakeState]
)
def test_every_word_of_the_state_table_is_explained_somewhere(kind: type[states.StrEnum]) -> None:
    known = _text("docs/glossary.md") + _text("docs/lifecycle.md") + _text("docs/agent-protocol.md")

    assert [value for value in kind if value not in known and value.replace("_", " ") not in known] == []


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("docs/concepts.md", [reason.value for reason in states.WakeReason]),
        ("docs/agents.md", Adapter.values),
        ("docs/console.md", [reverse(f"console:{page.name}") for pages in PAGES.values() for page in pages]),
    ],
    ids=["wake reasons", "adapters", "pages of the console"],
)
def test_a_page_of_the_documents_names_each_of_its_kind(page: str, words: Sequence[str]) -> None:
    text = _text(page)

    assert [word for word in words if f"`{word}`" not in text] == []


def test_the_glossary_is_in_order_and_explains_each_word_once() -> None:
    words = re.findall(r"^\| ([a-z][a-z -]+) \|", _text("docs/glossary.md"), re.MULTILINE)[1:]

    assert len(words) > 60
    assert words == sorted(set(words))


@pytest.mark.parametrize("module", ["engine", "celery"])
def test_operations_gives_a_reason_for_every_setting(module: str) -> None:
    names = re.findall(
        r"^((?:ORCHESTRATOR|CELERY)_\w+)", _text(f"orchestrator/settings/{module}.py"), re.MULTILINE
    )

    assert names
    assert [name for name in names if f"`{name}`" not in _text("docs/operations.md")] == []


def test_operations_marks_the_settings_that_the_environment_can_set() -> None:
    source = _text("orchestrator/settings/engine.py")
    from_environment = set(re.findall(r"_env(?:\.\w+)?\(\s*\"(\w+)\"", source)) - {
        "WEB_CONCURRENCY",
        "AGENT_EGRESS_ALLOW",
    }
    rows = [
        line.split(" | ")[0] for line in _text("docs/operations.md").splitlines() if line.startswith("| `")
    ]
    marked = {name for row in rows if " *" in row for name in re.findall(r"`(\w+)`", row)}

    assert from_environment - marked == set()
    assert {
        name for name in marked if re.search(rf"^{name} = ", source, re.MULTILINE)
    } - from_environment == set()


def test_operations_names_no_setting_that_does_not_exist() -> None:
    sources = (
        *(module.text for module in tree.modules()), _text(".env.example"), _text("docker-compose.yml"),
    )  # fmt: skip
    known = {name for source in sources for name in re.findall(r"\b[A-Z]+_\w*", source)}
    setting = re.compile(r"`((?:ORCHESTRATOR|CELERY|WORKER|AGENT|FLOWER|WEB)_[A-Z_]+)`")
    named = {name for path in DOCUMENTS for name in setting.findall(path.read_text(encoding="utf-8"))}

    assert {
        name
        for name in named
        if not name.startswith("WORKER_CONCURRENCY_") and not any(each.startswith(name) for each in known)
    } == set()


@in_one_test("document", DOCUMENTS, ids=_name)
def test_every_link_leads_somewhere(document: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        path, _, heading = target.partition("#")
        if "://" in target:
            continue
        place = (document.parent / path).resolve() if path else document
        if not place.exists() or (heading and heading not in _headings(place)):
            broken.append(target)

    assert broken == []


@in_one_test("document", DOCUMENTS, ids=_name)
def test_every_path_that_is_named_exists(document: Path) -> None:
    places = [tree.ROOT, *(tree.ROOT / app for app in tree.APPS), tree.ROOT / "activities" / "admission"]
    # Files that the reader of the document writes.
    of_the_reader = {block.title for block in blocks(document)}
    shaped = re.compile(r"[\w.-]+(?:/[\w.-]+)+/?|[\w-]+\.(?:py|md|lua|sql|yml|toml)")
    missing = []
    for span in _code_spans(document):
        if (
            shaped.fullmatch(span)
            and span not in ELSEWHERE | of_the_reader
            and not any((place / span).exists() for place in places)
        ):
            missing.append(span)

    # Addresses, media types and GitHub names have slashes as well, so only known endings count as paths.
    assert [
        span for span in missing if span.endswith((".py", ".md", ".lua", ".sql", ".yml", ".toml", "/"))
    ] == []


@in_one_test("document", DOCUMENTS, ids=_name)
def test_every_command_that_is_named_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", _text("Makefile"), re.MULTILINE))

    assert {
        name for name in re.findall(r"manage\.py ([a-z_]+)\b", text) if name not in get_commands()
    } == set()
    assert {
        name
        for name in re.findall(r"(?:`|^ {4}|^)make ([a-z-]+)\b", text, re.MULTILINE)
        if name not in targets
    } == set()


def test_the_page_on_the_command_line_names_every_command_of_ours() -> None:
    ours = {name for name, app in get_commands().items() if app in tree.APPS}

    assert {
        name for name in ours if not re.search(rf"`\[?`?{name}\b", _text("docs/command-line.md"))
    } == set()


def test_what_make_up_installs_includes_the_mcp_server() -> None:
    recipe = re.search(r"^\$\(VENV\)/\.run:.*\n(?:\t.*\n)+", _text("Makefile"), re.MULTILINE)

    assert recipe is not None
    assert "-r requirements/mcp.txt" in recipe[0]


def test_the_page_on_fault_injection_has_the_kinds_of_the_harness() -> None:
    rows = re.findall(
        r"^\| `([a-z-]+)` \| (.+) \| (at once|[\d.]+ to [\d.]+ s) \|$", _text("docs/chaos.md"), re.MULTILINE
    )

    assert rows == [
        (name, kind.about, f"{kind.seconds[0]:g} to {kind.seconds[1]:g} s" if kind.seconds[1] else "at once")
        for name, kind in KINDS.items()
    ]


def test_every_code_name_in_the_architecture_document_exists() -> None:
    """Functions, tables, columns and files. A renamed one would make the table of crashes wrong."""
    texts = [module.text for module in tree.modules()]
    texts += [
        path.read_text(encoding="utf-8") for pattern in ("*.sql", "*.lua") for path in tree.files(pattern)
    ]
    known = set(re.findall(r"\w+", " ".join(texts)))
    known |= {path.stem for folder in ("tests", *tree.APPS) for path in (tree.ROOT / folder).rglob("*.*")}

    names = {
        name
        for span in _code_spans(tree.ROOT / "docs" / "architecture.md")
        for name in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", span)
    }

    assert names - known == set()


@in_one_test("document", DOCUMENTS, ids=_name)
def test_every_dotted_name_in_the_documents_exists(document: Path) -> None:
    known = {module.name: module.text for module in tree.modules()}
    missing = []
    for span in _code_spans(document):
        owner, _, name = span.partition("(")[0].rpartition(".")
        if span.partition(".")[0] not in tree.APPS or not re.fullmatch(r"[a-z_]+(\.\w+)+(\(\))?", span):
            continue
        if re.fullmatch(r"[EWI]\d{3}", name):
            continue  # the identifier of a check
        text = known.get(owner)
        if f"{owner}.{name}" not in known and (text is None or not re.search(rf"\b{name}\b", text)):
            missing.append(span)

    assert missing == []


def test_decisions_are_numbered_without_a_gap_and_name_the_road_not_taken() -> None:
    decisions = sorted((DOCS / "adr").glob("*.md"))
    headings = [path.read_text(encoding="utf-8").splitlines()[0] for path in decisions]

    assert [int(path.name[:4]) for path in decisions] == list(range(1, len(decisions) + 1))
    assert [int(re.match(r"# (\d+)\. \S", heading)[1]) for heading in headings] == list(
        range(1, len(decisions) + 1)
    )  # type: ignore[index]
    assert all("## The road not taken" in path.read_text(encoding="utf-8") for path in decisions)


def test_the_readme_claims_as_many_decisions_as_there_are() -> None:
    numbers = ("nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen")
    count = len(list((DOCS / "adr").glob("*.md")))

    assert f"{numbers[count - 9]} [decisions]" in _text("README.md")


def test_the_figures_at_the_top_of_the_readme_are_those_of_the_benchmarks() -> None:
    """They are written by hand, so a new run of the benchmarks does not update them."""
    first, _, rest = _text("README.md").partition("## What you get")
    measured = {cells[1]: cells[2:] for line in rest.splitlines() if len(cells := _cells(line)) > 3}
    claimed = {cells[1]: cells[2:4] for line in first.splitlines() if len(cells := _cells(line)) > 3}

    def figures(table: dict[str, list[str]], row: str) -> list[str]:
        (columns,) = [cells for name, cells in table.items() if name.startswith(row)]
        return [match[0] for cell in columns[:2] if (match := re.search(r"[\d.]+", cell))]

    for above, below in (
        ("steps per second", "steps per second, 1,000 runs"),
        ("a run of 3 steps", "one 3-step run on an idle system, p50"),
    ):
        assert figures(claimed, above) == figures(measured, below)
    assert f"after {figures(measured, '200 runs in progress')[0]} s" in first


def test_other_pages_quote_the_measured_figures_of_the_readme() -> None:
    measured = {
        cells[1]: cells[2] for line in _text("README.md").splitlines() if len(cells := _cells(line)) > 3
    }

    def of_the_readme(row: str) -> str:
        *_, figures = [figures for name, figures in measured.items() if name.startswith(row)]
        return figures.partition(" (")[0]

    comparison, operations = _text("docs/comparison.md"), _text("docs/operations.md")
    steps, single = (
        of_the_readme("steps per second, 1,000 runs"),
        of_the_readme("submissions per second, one by one"),
    )
    p95 = of_the_readme("the same, p95")
    assert f"| steps per second | {steps} |" in comparison
    assert f"| the same, p95, ms | {float(p95):.0f} |" in comparison
    assert f"| submissions per second, one by one | {single} |" in comparison
    assert f"| {steps} a second," in operations
    assert f"| {single} and " in operations


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")]


def test_the_readme_names_the_licence_of_the_project() -> None:
    project = tomllib.loads(_text("pyproject.toml"))["project"]

    assert project["license"] == "Apache-2.0"
    assert "Apache License 2.0" in _text("README.md")


@in_one_test("document", DOCUMENTS, ids=_name)
def test_documents_have_short_lines_no_emojis_and_no_praise(document: Path) -> None:
    text = document.read_text(encoding="utf-8")

    assert not re.search(r"[\U0001F300-\U0001FAFF\u2600-\u27BF]", text), "no emojis"
    assert not re.search(rf"\b({PRAISE})\b", text, re.IGNORECASE)
    assert all(len(line) <= 160 or line.startswith(("|", "- `", "![")) for line in text.splitlines())
