"""Command line: `python -m orchestrator.mcp [--http PORT]`. Standard input and output unless a port is given."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sys
from collections.abc import Sequence

from orchestrator.mcp import api

try:
    from orchestrator.mcp import agent_tools, people_tools, server
    from orchestrator.mcp.server import serve_stdio
except ModuleNotFoundError as error:
    if error.name not in ("mcp", "mcp_types"):
        raise
    sys.exit("The MCP server needs the SDK: pip install orchestrator[mcp]")

EPILOG = """environment:
  ORCHESTRATOR_URL       address of the orchestrator, such as https://host
  ORCHESTRATOR_TOKEN     a personal token (not with --http, where each client sends its own)
  ORCHESTRATOR_CALLBACK_URL, ORCHESTRATOR_CALLBACK_TOKEN
                         of an agent's run, instead of the two above; command-line agents have them
"""
USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.no_end:
        offered = options.tools or [tool.name for tool in agent_tools.TOOLS]
        options.tools = [name for name in offered if name not in agent_tools.ENDING]
        if not options.tools:  # it would mean all tools
            return _fail("--no-end leaves none of the tools that --tools names.")
    # Standard output is used by the protocol.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="orchestrator.mcp: %(message)s")
    try:
        if options.http is None:
            access = api.access_from_environment(os.environ)
            asyncio.run(serve_stdio(access, only=options.tools))
        else:
            _serve_http(options)
    except (api.InvalidAccess, OSError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        pass
    return 0


def _serve_http(options: argparse.Namespace) -> None:
    address = os.environ.get(api.URL)
    if not address:
        raise api.InvalidAccess(
            f"{api.URL} must be set: the address of the orchestrator, such as https://host."
        )
    site = api.site_of(address)
    if os.environ.get(api.TOKEN) or os.environ.get(api.CALLBACK_TOKEN):
        logging.getLogger(__name__).warning(
            "The token in the environment is not used with --http: every client sends its own."
        )
    if options.host not in server.LOOPBACK and not options.allow_host:
        raise api.InvalidAccess(
            f"--host {options.host} can be reached from other machines: name the address that clients use with --allow-host, "
            "such as mcp.example.com:443."
        )
    binding = server.Binding(options.host, options.http, options.allow_host, options.allow_origin)
    server.serve(site, binding, only=options.tools)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.mcp",
        description="MCP server of the Orchestrator, for agents with the token of a run and for people with a personal token.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--http", type=_port, metavar="PORT", help="serve streamable HTTP; 0 chooses a free port"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at with --http (127.0.0.1)")
    parser.add_argument(
        "--allow-host", type=_host, action="append", default=[], metavar="NAME:PORT",
        help="an allowed Host header, in addition to 127.0.0.1, localhost and [::1]; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--allow-origin", type=_origin, action="append", default=[], metavar="ORIGIN",
        help="a page (https://host) whose scripts may call the server; default: none; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--tools", type=_tools, default=[], metavar="NAME,...",
        help="offer only these tools",
    )  # fmt: skip
    parser.add_argument(
        "--no-end",
        action="store_true",
        help="without the tools complete and fail, for an agent whose run ends with its process",
    )
    return parser


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 65_536):
        raise argparse.ArgumentTypeError("must be a port from 0 to 65535")
    return int(text)


def _host(text: str) -> str:
    if not re.fullmatch(r"[^/@\s]+", text):
        raise argparse.ArgumentTypeError("must be a host such as mcp.example.com:443")
    return text.lower()


def _origin(text: str) -> str:
    if not re.fullmatch(r"[\w+.-]+://[^/@\s]+|null", text):
        raise argparse.ArgumentTypeError("must be an origin such as https://host, without a path")
    return text.lower()


def _tools(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    known = {tool.name for tool in (*agent_tools.TOOLS, *people_tools.TOOLS)}
    if unknown := sorted(set(names) - known):
        raise argparse.ArgumentTypeError(f"there is no tool {', '.join(map(repr, unknown))}")
    return names


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return USAGE_ERROR


if __name__ == "__main__":
    sys.exit(main())
