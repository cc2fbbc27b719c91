"""An agent made with Anthropic's Agent SDK, whose conversation goes on when its work is revised. Needs ANTHROPIC_API_KEY, or
ANTHROPIC_BASE_URL of another server. It may use no tools; `allowed_tools` and `mcp_servers` give it some."""

import asyncio

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query
from serve import serve


async def hold(job):
    options = ClaudeAgentOptions(
        model=job["model"],
        system_prompt=job["instructions"] or None,
        resume=job["session_id"],
        max_turns=job["max_turns"] or 10,
        tools=[],
    )
    result = None
    async for message in query(prompt=job["prompt"], options=options):
        if isinstance(message, ResultMessage):
            result = message
    if result is None or result.is_error:
        raise RuntimeError(result.result or result.subtype if result else "The agent ended without a result.")
    return result


def answer(job):
    result = asyncio.run(hold(job))
    used = result.usage or {}
    usage = {name: used.get(name, 0) for name in ("input_tokens", "output_tokens")}
    return {
        "output": {"content": result.result},
        "usage": {**usage, "cost_usd": result.total_cost_usd},
        "session_id": result.session_id,
    }


if __name__ == "__main__":
    serve(answer)
