"""What log lines contain, and what they never contain, for any logger."""

from __future__ import annotations

import io
import json
import logging
import logging.config
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import structlog
from celery import signals

from orchestrator.settings.logging import LOGGING, log_format
from tenants import request_context
from tenants.current_tenant import CURRENT

TENANT = UUID("0198a5c2-0000-7000-8000-000000000001")
CANARY = "kanarie-3c1f"


@pytest.fixture(params=["json", "console"])
def lines(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    yield from captured(request.param)


@pytest.fixture
def json_lines() -> Iterator[io.StringIO]:
    yield from captured("json")


def captured(format_name: str) -> Iterator[io.StringIO]:
    """Yield what the logger of a library writes in this format."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    settings: dict[str, Any] = deepcopy(LOGGING["formatters"][format_name])
    handler.setFormatter(settings.pop("()")(**settings))
    logger = logging.getLogger("a.library")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield stream
    logger.removeHandler(handler)


def test_a_line_is_one_json_object_with_the_ids_of_its_request_and_its_tenant(
    json_lines: io.StringIO,
) -> None:
    tenant = CURRENT.set(TENANT)
    with request_context.of_request("r-1"):
        logging.getLogger("a.library").info(
            "Something\nhappened", extra={"action": "it_happened", "count": 3}
        )
    CURRENT.reset(tenant)

    (line,) = json_lines.getvalue().splitlines()
    members = json.loads(line)
    assert members.pop("timestamp")
    assert members == {
        "event": "Something\nhappened", "action": "it_happened", "count": 3, "request_id": "r-1", "tenant": str(TENANT),
        "level": "info", "logger": "a.library",
    }  # fmt: skip


def test_log_lines_of_work_name_the_request_that_started_it_and_a_callback_names_both(
    json_lines: io.StringIO,
) -> None:
    logger = logging.getLogger("a.library")
    with request_context.of_work([{"request": "older"}, None, {"request": "r-1"}], activity="a-1", run="u-1"):
        logger.info("In a run")
        token = request_context.current()
    with request_context.of_request("r-2"), request_context.of_callback(token, activity="a-1", run="u-1"):
        logger.info("In a callback")
        follows = request_context.current()
    logger.info("Afterwards")

    in_run, in_callback, afterwards = map(json.loads, json_lines.getvalue().splitlines())
    assert (in_run["request_id"], in_run["activity"], in_run["run"]) == ("r-1", "a-1", "u-1")
    assert (in_callback["request_id"], in_callback["caused_by"], in_callback["run"]) == ("r-2", "r-1", "u-1")
    assert follows == {"request": "r-1"}
    assert not {"request_id", "caused_by", "activity", "run"} & set(afterwards)
    assert request_context.dump_current() is None


def test_no_log_line_contains_secrets_or_prompts_under_any_name(lines: io.StringIO) -> None:
    logger = logging.getLogger("a.library")
    run_token = "WyIwMTk4YTVjMi0wMDAwLTcwMDAtODAwMC0wMDAwMDAwMDAwMDEi" + f":1tXabc:{CANARY}{'x' * 40}"
    for text in (
        f"Authorization: Bearer {CANARY}", f"token orc_{CANARY}-aaaaaaaaaaaaaaaa", f"key sk-{CANARY}-aaaaaaaaaaaaaa",
        f"postgres://who:{CANARY}@db/x", f"whsec_{CANARY}aaaaaaaaaaaaaaaa".replace("-", "+"), f"run {run_token}",
        f"https://hooks.slack.com/services/{CANARY}/b",
    ):  # fmt: skip
        logger.info(text, extra={"reason": text, "facts": {"list": [text]}})
    logger.info("Called %s", f"Basic {CANARY}")
    for name in (
        "prompt",
        "params",
        "password",
        "api_key",
        "callback_token",
        "Authorization",
        "auth",
        "output",
        "body",
    ):
        logger.info("Something", extra={name: CANARY, "inner": {name: [CANARY]}})

    assert CANARY not in lines.getvalue().replace("+", "-")
    assert "[secret]" in lines.getvalue()


def test_numbers_under_names_like_those_of_secrets_are_kept(json_lines: io.StringIO) -> None:
    logging.getLogger("a.library").info(
        "Used", extra={"input_tokens": 12, "token_id": "t-1", "author": "mia"}
    )

    line = json.loads(json_lines.getvalue())
    assert (line["input_tokens"], line["token_id"], line["author"]) == (12, "t-1", "mia")


def test_an_exception_is_logged_with_its_frames_and_the_first_line_of_its_message(lines: io.StringIO) -> None:
    def fails(prompt: str) -> None:
        try:
            int(prompt[:0] or "nothing")
        except ValueError as error:
            raise RuntimeError(f"the row is wrong\nDETAIL: Failing row contains ({prompt})") from error

    try:
        fails(CANARY)
    except RuntimeError:
        logging.getLogger("a.library").exception("It broke", extra={"action": "it_broke"})

    text = lines.getvalue()
    assert "RuntimeError: the row is wrong" in text
    assert "ValueError: invalid literal" in text
    assert "in fails" in text
    assert CANARY not in text


def test_the_format_is_text_on_a_terminal_and_json_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOG_FORMAT", raising=False)
    assert log_format(to_a_terminal=True) == "console"
    assert log_format(to_a_terminal=False) == "json"
    assert log_format("json", to_a_terminal=True) == "json"
    monkeypatch.setenv("LOG_FORMAT", "console")
    assert log_format("json", to_a_terminal=False) == "console"


def test_python_accepts_the_logging_configuration() -> None:
    root = logging.getLogger()
    before = (root.handlers[:], root.level, structlog.contextvars.get_contextvars())
    try:
        logging.config.dictConfig({**LOGGING, "incremental": False})
        assert [type(handler) for handler in root.handlers] == [logging.StreamHandler]
    finally:
        root.handlers[:], root.level = before[0], before[1]


@pytest.mark.parametrize("of_the_command_line", [True, False])
def test_celerys_option_logfile_gets_the_lines_instead_of_stderr(
    json_lines: io.StringIO, tmp_path: Path, of_the_command_line: bool
) -> None:
    logger = logging.getLogger("a.library")
    path = tmp_path / "worker.log"

    signals.after_setup_logger.send(
        None, logger=logger, loglevel=logging.INFO, logfile=str(path) if of_the_command_line else None
    )
    logger.info("Worker began")

    logged = path.read_text() if of_the_command_line else json_lines.getvalue()
    assert json.loads(logged)["event"] == "Worker began"
    assert path.exists() is (json_lines.getvalue() == "")
