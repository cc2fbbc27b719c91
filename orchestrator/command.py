"""Command line of the project: `manage.py` in a checkout, `orchestrator` where the project is installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line

from orchestrator.demo.input_text import InputRefused, check_argument
from orchestrator.embedded import EmbeddedError
from tenants import outages

# These start the embedded servers themselves when no server is configured, and stop what they started.
STARTS_SERVICES = {"up", "demo", "demo_model"}
DEMONSTRATIONS = {"demo", "demo_model"}
INTERRUPTED = 130  # by Ctrl-C, as shells report it


def main() -> None:
    _refuse_unreadable(sys.argv[1:])
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "orchestrator.settings.local")
    if len(sys.argv) > 1 and sys.argv[1] in STARTS_SERVICES and not {"-h", "--help"} & set(sys.argv):
        if sys.argv[1] in DEMONSTRATIONS:
            _check_input()
        os.environ["ORCHESTRATOR_START_SERVICES"] = "1"
    try:
        execute_from_command_line(sys.argv)
        sys.stdout.flush()
    except BrokenPipeError:
        if _is_read():
            raise
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # for what Python would write at the end
        sys.exit(1)
    except KeyboardInterrupt:
        if "--traceback" in sys.argv:
            raise
        sys.exit(INTERRUPTED)
    except (ImproperlyConfigured, EmbeddedError) as error:
        # Settings are read before any command could say in one line what is missing.
        if "--traceback" in sys.argv:
            raise
        sys.exit(str(error))
    except Exception as error:
        reason = "" if "--traceback" in sys.argv else outages.reason_of(error)
        if not reason:
            raise
        sys.exit(reason)


def _is_read() -> bool:
    """Return whether somebody reads the output, which is not so after `manage.py queues | head`."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return False
    return True


def _refuse_unreadable(arguments: Sequence[str]) -> None:
    """Exit with a usage error if an argument is not UTF-8, because Python accepts such bytes, and PostgreSQL refuses them later."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            sys.stderr.write(f"The argument {argument!a} is not valid UTF-8.\n")
            sys.exit(2)


def _check_input() -> None:
    """Exit if the text to work on cannot be used, before the servers are started."""
    try:
        check_argument(sys.argv[2:])
    except InputRefused as error:
        sys.exit(str(error))
