"""Reads the definition of a pipeline from a file or an API call, and reports every error with its path.

Pure. `load` turns text into plain data. `parse` turns data into a frozen `PipelineDefinition`, or raises a
`DefinitionError` that lists all errors at once. A parsed definition is safe to run: its dependencies exist,
its graph has no cycle, its numbers are in range, and its text can be stored.
"""

from pipelines.definition.errors import DefinitionError, InputError
from pipelines.definition.loading import MAX_BYTES, load
from pipelines.definition.parsing import MAX_STEPS, parse
from pipelines.definition.shapes import (
    EscalationDefinition,
    OnTimeout,
    PipelineDefinition,
    ReminderDefinition,
    RetryDefinition,
    RetryStrategy,
    StepDefinition,
)
