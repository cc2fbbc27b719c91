"""Bodies that hold rows may be larger than others."""

from __future__ import annotations

from django.conf import settings

from pipelines.datasets.uploads import most_values


class LargeBodies:
    """For views that take rows: more bytes and values than elsewhere, within the limits of datasets."""

    @property
    def max_body_bytes(self) -> int:
        return int(settings.ORCHESTRATOR_DATASET_BODY_BYTES)

    @property
    def max_body_values(self) -> int:
        return most_values()
