"""A simulated model provider, for tests and benchmarks: a real HTTP server with the protocols of Anthropic and OpenAI.

It answers as a script says, counts requests and tokens against limits per minute (of any length), reports what remains in headers, refuses
with 429 and Retry-After, and fails on request. A recorder has every call with its times, and the number of concurrent calls.

    with FakeProvider(limits=Limits(requests=50, input_tokens=100_000, minute_seconds=2)) as provider:
        provider.script(Turn("Hello."), Fault(status=529), Turn(calls=(Use("report_blocker", {...}),)))
        ... provider.anthropic_url, provider.openai_url ...
        provider.recorder.calls

It needs only the standard library.
"""

from benchmarks.fake_provider.limits import Limits
from benchmarks.fake_provider.recorder import Call, Recorder
from benchmarks.fake_provider.script import Fault, Turn, Use
from benchmarks.fake_provider.server import FakeProvider

__all__ = ("Call", "FakeProvider", "Fault", "Limits", "Recorder", "Turn", "Use")
