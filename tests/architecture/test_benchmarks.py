"""Every topic of `python -m benchmarks` can be imported and measured, though the suite does not measure it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from benchmarks.__main__ import TOPICS
from tests.architecture import tree

# In a process of its own, because the comparison defines a Celery program, which becomes the current one.
SCENARIOS_OF_ALL = """
import importlib, json, sys, django
django.setup()
modules = {name: importlib.import_module(name) for name in sys.argv[1:]}
print(json.dumps({name: [list(module.SCENARIOS), [hasattr(module, each) for each in %r[name]]] for name, module in modules.items()}))
"""


def test_each_topic_has_scenarios_and_the_constants_that_its_options_set() -> None:
    constants = {topic.module: list(topic.constants) for topic in TOPICS.values()}
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "orchestrator.settings.test"}
    program = [sys.executable, "-c", SCENARIOS_OF_ALL % constants, *constants]

    done = subprocess.run(
        program, cwd=tree.ROOT, env=environment, capture_output=True, text=True, check=True, timeout=120
    )

    for scenarios, has_constants in json.loads(done.stdout).values():
        assert scenarios
        assert all(has_constants)
