"""A model provider of our own, for tests and benchmarks: a real HTTP server that speaks both families' protocols.

It answers what a script says (or echoes), counts requests and tokens against limits per minute (of any length), tells what is left in
headers, refuses with 429 and Retry-After, and fails on demand. A recorder knows every call with its times and how many were open at once.

    with FakeProvider(limits=Limits(requests=50, input_tokens=100_000, minute_seconds=2)) as provider:
        provider.script(Turn("Hello."), Fault(status=529), Turn(calls=(Use("report_blocker", {...}),)))
        ... provider.anthropic_url, provider.openai_url ...
        provider.recorder.calls

Only the standard library is needed.
"""

from benchmarks.fake_provider.limits import Limits
from benchmarks.fake_provider.recorder import Call, Recorder
from benchmarks.fake_provider.script import Fault, Turn, Use
from benchmarks.fake_provider.server import FakeProvider

__all__ = ("Call", "FakeProvider", "Fault", "Limits", "Recorder", "Turn", "Use")
