"""What a pipeline is: from a file or an API call to frozen values, with every error named by its path.

Pure. `load` turns text into plain data, `parse` turns data into a `PipelineDefinition` or raises a
`DefinitionError` that lists all errors at once. A definition that `parse` returned holds no surprise for
those who run it: its steps exist, its graph has an order, its numbers are in range, its text can be stored.
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
