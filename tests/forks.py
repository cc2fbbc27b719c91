"""Runs tests in several processes that are forked after collection: `pytest -p tests.forks --processes 4`.

With pytest-xdist each process imports and collects all tests, which takes seven seconds of a processor in each, and imports again what
tests import while they run. Here one process does it for all. The tests of one file run in one process, in their order. So do the tests
that drive a browser, of all files, because they share it.

A process that dies fails all its tests that have not been reported. They fail as well if they could not be run at all.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
from _pytest import runner

NUMBER_BYTES = 2  # of the number of a group. So few bytes are read from a pipe at once, so two processes never share a number.
PROCESSES = multiprocessing.get_context("fork")


class NewHooks:
    def pytest_process_forked(self, config: pytest.Config, name: str) -> None:
        """Called in each process before its first test, with its name: gw0, gw1 ..."""


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(NewHooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=0, help="run tests in so many processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests of the session in forks, unless there is nothing to run."""
    option = session.config.option
    if not option.processes or option.collectonly or session.testsfailed or not session.items:
        return None
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # shared by all
    groups: dict[Path | str, list[pytest.Item]] = {}
    for item in session.items:
        groups.setdefault(_group(item), []).append(item)
    queue = _queue(len(groups))
    stopped = PROCESSES.Event()
    processes, receivers = [], []
    for number in range(min(option.processes, len(groups))):
        receiver, sender = PROCESSES.Pipe(duplex=False)
        arguments = (session, f"gw{number}", [*groups.values()], queue, sender, stopped)
        processes.append(PROCESSES.Process(target=_run_groups, args=arguments))
        processes[-1].start()
        sender.close()
        receivers.append(receiver)
    try:
        _report(session, receivers)
    finally:
        stopped.set()
        for process in processes:
            process.join()
    if any(process.exitcode for process in processes):
        session.shouldfail = "a process failed"
        raise session.Failed(session.shouldfail)
    return True


def _group(item: pytest.Item) -> Path | str:
    """Return the file of the test, or "ui". The long test in a browser shares an installation with its file, which costs more."""
    marks = {mark.name for mark in item.iter_markers()}
    return "ui" if "ui" in marks and "long" not in marks else item.path


def _queue(size: int) -> int:
    """Return a pipe with the numbers from 0 to `size`, from which each process takes the next one."""
    queue, writer = os.pipe()
    os.write(writer, b"".join(number.to_bytes(NUMBER_BYTES, "big") for number in range(size)))
    os.close(writer)
    return queue


def _report(session: pytest.Session, receivers: list[Connection]) -> None:
    """Pass on the reports of all processes, and a failure for each test without one."""
    hook = session.config.hook
    missing = {item.nodeid: item for item in session.items}
    while receivers:
        for receiver in wait(receivers):
            try:
                nodeid, location, reports = receiver.recv()  # type: ignore[union-attr]
            except EOFError:
                receivers.remove(receiver)  # type: ignore[arg-type]
                continue
            del missing[nodeid]
            hook.pytest_runtest_logstart(nodeid=nodeid, location=location)
            for report in reports:
                hook.pytest_runtest_logreport(
                    report=hook.pytest_report_from_serializable(config=session.config, data=report)
                )
            hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
    for item in missing.values():
        error = "The process that ran this test died."
        failed = pytest.TestReport(item.nodeid, item.location, {}, "failed", error, "call")
        hook.pytest_runtest_logreport(report=failed)


def _run_groups(
    session: pytest.Session,
    name: str,
    groups: list[list[pytest.Item]],
    queue: int,
    sender: Connection,
    stopped: Any,
) -> None:
    """Run the tests of one group after the other in this process, until there are no more."""
    config = session.config
    config.workerinput = {"workerid": name}  # type: ignore[attr-defined]  # as pytest-xdist, for other plugins
    os.environ["PYTEST_XDIST_WORKER"] = name
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(_Sender(config, sender))
    _capture_in_own_files(config)
    config.hook.pytest_process_forked(config=config, name=name)
    while (number := os.read(queue, NUMBER_BYTES)) and not stopped.is_set():
        tests = groups[int.from_bytes(number, "big")]
        # What follows a test decides which fixtures are kept; after the last one, those of the session.
        for test, following in zip(tests, [*tests[1:], session], strict=True):
            config.hook.pytest_runtest_protocol(item=test, nextitem=following)
    runner.pytest_sessionfinish(session)  # ends the fixtures of the session


def _capture_in_own_files(config: pytest.Config) -> None:
    """Replace the files in which output is captured, because all processes have inherited the same ones."""
    captured = config.pluginmanager.getplugin("capturemanager")._global_capturing  # type: ignore[union-attr]
    for stream in (captured.out, captured.err):
        if hasattr(stream, "targetfd"):  # captures what is written to a file descriptor
            with tempfile.TemporaryFile() as own:
                os.dup2(own.fileno(), stream.tmpfile.fileno())


class _Sender:
    """Sends the reports of each test to the first process."""

    def __init__(self, config: pytest.Config, sender: Connection) -> None:
        self._config = config
        self._sender = sender
        self._reports: list[object] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        serializable = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._reports.append(serializable)

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._sender.send((nodeid, location, self._reports))
        self._reports = []
