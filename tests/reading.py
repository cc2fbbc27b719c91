"""A reader who does what a document says: the fenced blocks of a page, and a shell in which they are run in their order.

What the page shows is what is run; only the address of the server and ports are put in place of those that stand there. Files are written
into a folder that looks like a clone: everything of the repository is there under its name, and `.venv` is the one that the tests run in.
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
    """A fenced block. `title` names the file that it is, or the terminal that it is typed into."""

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
    """Every fenced block of a page that says its language, in their order."""
    text = document.read_text(encoding="utf-8")
    return [
        Block(
            str(document.relative_to(tree.ROOT)),
            (re.findall(r"^## (.+)$", text[: found.start()], re.MULTILINE) or [""])[-1],
            text.count("\n", 0, found.start()) + 1,
            found["language"],
            found["title"] or "",
            found["remark"] or "",
            re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE),
        )
        for found in _FENCE.finditer(text)
    ]


@dataclass
class Reader:
    """Somebody with a clone and terminals. `instead` says what to type in place of what stands in the document."""

    folder: Path
    environment: Mapping[str, str]
    instead: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in tree.ROOT.iterdir():
            if path.name not in {".venv", "var", "site"}:
                (self.folder / path.name).symlink_to(path)
        (self.folder / ".venv").symlink_to(sys.prefix)
        self._others: dict[str, subprocess.Popen[str]] = {}
        self._shell = self._begun("bash", "-s")
        self._type("set -eo pipefail")

    def does(self, block: Block) -> str:
        """Write a file, run commands, or begin what goes on in another terminal; what it showed."""
        text = block.text
        for said, meant in self.instead.items():
            text = text.replace(said, meant)
        if block.title.endswith("terminal"):
            return self._begin(block.title, text)
        if block.title:
            (self.folder / block.title).write_text(text, encoding="utf-8")
            return ""
        return self._type(text, block)

    def types(self, text: str) -> None:
        """Type something that stands on no page, with the same put in place."""
        for said, meant in self.instead.items():
            text = text.replace(said, meant)
        self._type(text)

    def interrupts(self, terminal: str) -> None:
        """Ctrl-C in another terminal."""
        ended = self._others.pop(terminal)
        os.killpg(ended.pid, signal.SIGINT)
        ended.wait(timeout=PATIENCE_SECONDS)
        _closed(ended)

    def leaves(self) -> None:
        """Close all terminals, and end what still runs in them."""
        for process in (self._shell, *self._others.values()):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in (self._shell, *self._others.values()):
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            _closed(process)

    def _begin(self, terminal: str, text: str) -> str:
        """Wait until it shows something, as somebody would before they go on."""
        screen = self.folder / f"{terminal}.screen"
        screen.unlink(missing_ok=True)
        process = self._begun("bash", "-c", f"exec {text.strip()} > '{screen}' 2>&1")
        self._others[terminal] = process
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not screen.exists() or not screen.stat().st_size:
            assert process.poll() is None, f"{text} ended"
            assert time.monotonic() < deadline, f"{text} shows nothing"
            time.sleep(0.05)
        return screen.read_text(encoding="utf-8")

    def _type(self, text: str, block: Block | None = None) -> str:
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{text}\nprintf '\\n{_END}\\n'\n")
        self._shell.stdin.flush()
        shown = []
        impatient = threading.Timer(PATIENCE_SECONDS, os.killpg, (self._shell.pid, signal.SIGKILL))
        impatient.start()
        try:
            for line in self._shell.stdout:
                if line == f"{_END}\n":
                    return "".join(shown).strip()
                shown.append(line)
        finally:
            impatient.cancel()
        raise AssertionError(f"{block or text} failed, or took too long:\n{''.join(shown)}{self._screens()}")

    def _screens(self) -> str:
        """What the other terminals show in the end."""
        return "".join(
            f"\n{path.name}:\n{path.read_text(encoding='utf-8')[-2000:]}"
            for path in self.folder.glob("*.screen")
        )

    def _begun(self, *command: str) -> subprocess.Popen[str]:
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
            preexec_fn=_as_from_a_terminal,
        )


@contextmanager
def reader(folder: Path, environment: Mapping[str, str], instead: Mapping[str, str]) -> Iterator[Reader]:
    """A reader in an empty folder; what they started is gone afterwards."""
    reading = Reader(folder, environment, instead)
    try:
        yield reading
    finally:
        reading.leaves()


def _as_from_a_terminal() -> None:
    """A shell has those that it runs in the background ignore Ctrl-C, and they would hand that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _closed(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
