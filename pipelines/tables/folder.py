"""The folder of a tenant in which an operator puts files for its data sources.

`ORCHESTRATOR_DATA_FOLDER/<tenant id>/<dataset>.csv` or `.json`. Only regular files that lie there themselves are
opened: a link, wherever it leads, is no file of the tenant's, and neither is a pipe or a device.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from django.conf import settings

from pipelines.data_sources.catalogue import TABLE_NAME

SUFFIXES = (".csv", ".json")
_HERE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class NoSuchFile(Exception):
    """There is no such file in the tenant's folder, or it is none that may be read."""


@contextmanager
def opened(tenant_id: UUID, name: str, *, largest: int) -> Iterator[tuple[BinaryIO, str]]:
    """The file of this dataset with its suffix. Raises `NoSuchFile`, also for a file of more than `largest` bytes."""
    if not TABLE_NAME.fullmatch(name):
        raise NoSuchFile("its name is none of a dataset")
    with _folder(tenant_id) as folder:
        handle, suffix = _found(folder, name)
    with os.fdopen(handle, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > largest:
            raise NoSuchFile(f"it has {size:,} bytes, and {largest:,} are read at most")
        yield file, suffix


@contextmanager
def _folder(tenant_id: UUID) -> Iterator[int]:
    place = Path(settings.ORCHESTRATOR_DATA_FOLDER) / str(tenant_id)
    try:
        folder = os.open(place, _HERE | os.O_DIRECTORY)
    except OSError as error:
        raise NoSuchFile("the tenant has no folder of files") from error
    try:
        yield folder
    finally:
        os.close(folder)


def _found(folder: int, name: str) -> tuple[int, str]:
    for suffix in SUFFIXES:
        try:
            # A pipe without a writer would hold whoever opens it.
            handle = os.open(name + suffix, _HERE | os.O_NONBLOCK, dir_fd=folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise NoSuchFile("it is no regular file that can be read") from error
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle, suffix
        os.close(handle)
        raise NoSuchFile("it is no regular file that can be read")
    raise NoSuchFile("the tenant's folder has no such file")
