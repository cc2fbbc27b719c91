"""Runs the fenced blocks of a document in their order, in a shell.

Only the server's address and ports are replaced. Files are written into a folder that looks like a clone: it links to everything in the
repository, and its `.venv` is the one of the tests.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.architecture import tree

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)(?: (?P<remark>[\w-]+))?(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_END = "__the end of the block__"
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Block:
    """A fenced block. `title` names the file that it contains, or the terminal in which it runs."""

    document: str
    section: str
    line: int
    language: str
    title: str
    remark: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks(document: Path) -> list[Block]:
    """Return all fenced blocks of a page that name a language, in their order."""
    text = document.read_text(encoding="utf-8")
    return [
        Block(
            str(document.relative_to(tree.ROOT)),
            (re.findall(r"^## (.+)$", text[: match.start()], re.MULTILINE) or [""])[-1],
            text.count("\n", 0, match.start()) + 1,
            match["language"],
            match["title"] or "",
            match["remark"] or "",
            re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE),
        )
        for match in _FENCE.finditer(text)
    ]


@dataclass
class Reader:
    """A user with a clone and terminals. `replacements` maps text of the document to what is typed instead."""

    folder: Path
    environment: Mapping[str, str]
    replacements: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in tree.ROOT.iterdir():
            if path.name not in {".venv", "var", "site"}:
                (self.folder / path.name).symlink_to(path)
        (self.folder / ".venv").symlink_to(sys.prefix)
        self._others: dict[str, subprocess.Popen[str]] = {}
        self._shell = self._start("bash", "-s")
        self._run("set -eo pipefail")

    def follow(self, block: Block) -> str:
        """Write a file, run commands, or start a process in another terminal; return the output."""
        text = self._replace(block.text)
        if block.title.endswith("terminal"):
            return self._run_in_background(block.title, text)
        if block.title:
            (self.folder / block.title).write_text(text, encoding="utf-8")
            return ""
        return self._run(text, block)

    def type(self, text: str) -> None:
        """Run commands that the document does not contain."""
        self._run(self._replace(text))

    def interrupt(self, terminal: str) -> None:
        """Press Ctrl-C in another terminal."""
        process = self._others.pop(terminal)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=PATIENCE_SECONDS)
        _close_pipes(process)

    def close(self) -> None:
        """Close all terminals and end their processes."""
        for process in (self._shell, *self._others.values()):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in (self._shell, *self._others.values()):
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            _close_pipes(process)

    def _run_in_background(self, terminal: str, text: str) -> str:
        """Start the command and wait for its first output, as a reader would."""
        screen = self.folder / f"{terminal}.screen"
        screen.unlink(missing_ok=True)
        process = self._start("bash", "-c", f"exec {text.strip()} > '{screen}' 2>&1")
        self._others[terminal] = process
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not screen.exists() or not screen.stat().st_size:
            assert process.poll() is None, f"{text} ended"
            assert time.monotonic() < deadline, f"{text} prints nothing"
            time.sleep(0.05)
        return screen.read_text(encoding="utf-8")

    def _run(self, text: str, block: Block | None = None) -> str:
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{text}\nprintf '\\n{_END}\\n'\n")
        self._shell.stdin.flush()
        output = []
        timer = threading.Timer(PATIENCE_SECONDS, os.killpg, (self._shell.pid, signal.SIGKILL))
        timer.start()
        try:
            for line in self._shell.stdout:
                if line == f"{_END}\n":
                    return "".join(output).strip()
                output.append(line)
        finally:
            timer.cancel()
        raise AssertionError(f"{block or text} failed, or took too long:\n{''.join(output)}{self._screens()}")

    def _replace(self, text: str) -> str:
        for old, new in self.replacements.items():
            text = text.replace(old, new)
        return text

    def _screens(self) -> str:
        """Return the last output of the other terminals."""
        return "".join(
            f"\n{path.name}:\n{path.read_text(encoding='utf-8')[-2000:]}"
            for path in self.folder.glob("*.screen")
        )

    def _start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=dict(self.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            start_new_session=True,
            preexec_fn=_accept_interrupts,
        )


@contextmanager
def reader(folder: Path, environment: Mapping[str, str], replacements: Mapping[str, str]) -> Iterator[Reader]:
    """Yield a reader in an empty folder, and end all their processes afterwards."""
    user = Reader(folder, environment, replacements)
    try:
        yield user
    finally:
        user.close()


def _accept_interrupts() -> None:
    """Undo that shells let background processes and their children ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _close_pipes(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
