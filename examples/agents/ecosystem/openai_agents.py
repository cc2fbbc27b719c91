"""An agent made with the OpenAI Agents SDK. Needs OPENAI_API_KEY, or OPENAI_BASE_URL of another server."""

from openai import AsyncOpenAI
from serve import serve

from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled  # of the SDK

set_tracing_disabled(True)


def answer(job):
    model = OpenAIChatCompletionsModel(job["model"] or "gpt-5-mini", AsyncOpenAI())
    agent = Agent(name=job["agent"], instructions=job["instructions"] or None, model=model)
    result = Runner.run_sync(agent, job["prompt"], max_turns=job["max_turns"] or 10)
    used = result.context_wrapper.usage
    usage = {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens, "model": model.model}
    return {"output": {"content": result.final_output}, "usage": usage}


if __name__ == "__main__":
    serve(answer)
