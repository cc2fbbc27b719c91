"""`python -m tests.containers compose | cluster`: exits 0 if every check held, 1 if one did not, 2 if they could not run."""

from __future__ import annotations

import argparse
import fcntl
import signal
import sys
from pathlib import Path

from tests.containers import cluster, compose
from tests.containers.engine import ROOT, Engine, Results, Trouble, missing
from tests.containers.images import Images

HELD, FAILED, NOT_CHECKED = 0, 1, 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.containers", description=__doc__)
    parser.add_argument("what", choices=("compose", "cluster"))
    parser.add_argument(
        "--images", choices=("auto", "registry", "stand-ins"), default="auto", help="where images come from"
    )
    parser.add_argument("--keep", action="store_true", help="do not remove the containers at the end")
    parser.add_argument("--validate", action="store_true", help="check only the configuration")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "var" / "containers", help="for images and containers"
    )
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))
    tell = Results()
    check = {"compose": compose, "cluster": cluster}[options.what]
    tell("configuration")
    check.validate(tell)
    absent = missing()
    if absent and not options.validate:
        print("\nNOT STARTED: containers need what is missing here:\n  " + "\n  ".join(absent))
    if absent or options.validate:
        print("Only the configuration was checked: nothing was built and nothing ran.")
        return FAILED if tell.failures else HELD if options.validate else NOT_CHECKED
    try:
        _in_containers(check, options, tell)
    except Trouble as trouble:
        print(f"\nThe check could not continue: {trouble}")
        return FAILED if tell.failures else NOT_CHECKED
    except KeyboardInterrupt:
        return 130
    if tell.failures:
        print("\nDid not hold:\n  " + "\n  ".join(tell.failures))
        return FAILED
    print("\nEverything held.")
    return HELD


def _in_containers(check: object, options: argparse.Namespace, tell: Results) -> None:
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Trouble(
                f"another check uses {folder}; wait for it, or choose another with --folder"
            ) from error
        engine = Engine(folder, tell)
        images = Images(engine, options.images, tell)
        engine.settle(images.base)
        engine.remove("orchestrator-check-")  # containers of a check that was killed
        check.run(engine, images, tell, keep=options.keep)  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
