"""What a process imports at its start, because each import costs memory and time in every process.

Parts that are imported later stay complete: their addresses can be reversed and resolved, and checks include them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from django.conf import settings

from tenants import tokens
from tenants.models import Tenant
from tests import servers

#: Modules of pages and of the API's document, and libraries that few requests and runs need.
PAGES = (
    "console.urls",
    "console.page",
    "orchestrator.admin",
    "tenants.admin",
    "unfold.admin",
)
DESCRIPTION = ("orchestrator.api_document", "tenants.api.schema", "drf_spectacular.plumbing", "django.test")
RENDERERS = ("markdown_it", "nh3")
LIBRARIES = (
    *RENDERERS, "pymongo", "cryptography.hazmat", "jsonschema", "httpx2", "anthropic", "openai", "mcp", "rich", "opentelemetry.sdk.metrics",
    # Without the variable, tracing is off. (The Redis client imports `opentelemetry.metrics` itself.)
    "opentelemetry.sdk.trace", "opentelemetry.exporter.otlp", "tenants.tracing.spans",
)  # fmt: skip
API = ("orchestrator.urls", "rest_framework.views")

#: Prints what a process with Django has imported after each program, which is a line of the input and runs in a fork of its own.
LIST_MODULES = """
import json, os, sys, traceback
import django
django.setup()
for line in sys.stdin:
    if child := os.fork():
        if os.waitpid(child, 0)[1]:
            print("[]", flush=True)
    else:
        try:
            exec(json.loads(line), {})
            print(json.dumps(sorted(sys.modules)), flush=True)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
"""
#: As gunicorn calls it, without Django's test client, which imports much itself.
FIRST_REQUEST = """
import io, sys
from orchestrator.wsgi import application
request = {
    "REQUEST_METHOD": "GET", "PATH_INFO": "/api/v1/queues/", "QUERY_STRING": "", "SERVER_NAME": "127.0.0.1", "SERVER_PORT": "80",
    "HTTP_HOST": "127.0.0.1", "HTTP_AUTHORIZATION": "Bearer " + TOKEN, "REMOTE_ADDR": "127.0.0.1", "wsgi.input": io.BytesIO(),
    "wsgi.errors": sys.stderr, "wsgi.url_scheme": "http",
}
status = []
answer = application(request, lambda line, headers, error=None: status.append(line))
assert status == ["200 OK"], (status, b"".join(answer))
"""
CELERY = """
from orchestrator.celery import app
app.loader.init_worker()
"""
WORKER = "from activities import intake, maintenance, worker"
BEAT = "from orchestrator import beat"


@pytest.fixture(scope="module")
def modules_after(django_db_setup: None) -> Iterator[Callable[[str], set[str]]]:
    """`modules_after(program)` returns the modules that a process with Django has imported after the program."""
    with subprocess.Popen(
        [sys.executable, "-c", LIST_MODULES],
        env=servers.environment(settings), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        requests, lines = process.stdin, process.stdout

        def run(program: str) -> set[str]:
            requests.write(f"{json.dumps(program)}\n")
            requests.flush()
            modules = set(json.loads(next(line for line in lines if line.startswith("["))))
            assert modules, "the program failed"
            return modules

        yield run


def test_a_web_process_has_imported_the_api_and_no_pages_after_its_first_request(
    modules_after: Callable[[str], set[str]], tenant: Tenant
) -> None:
    _, secret = tokens.create(tenant, "admin", "first")

    modules = modules_after(f"TOKEN = {secret!r}\n{FIRST_REQUEST}")

    assert set(API) <= modules
    assert modules & {*PAGES, *DESCRIPTION, *LIBRARIES} == set()


@pytest.mark.parametrize("process", [WORKER, BEAT], ids=["worker", "beat"])
def test_worker_and_beat_import_neither_pages_nor_the_api(
    process: str, modules_after: Callable[[str], set[str]]
) -> None:
    modules = modules_after(CELERY + process)

    assert modules & {*PAGES, *DESCRIPTION, *LIBRARIES, *API} == set()


def test_the_leader_imports_no_renderer_of_markdown_for_its_jobs(
    modules_after: Callable[[str], set[str]],
) -> None:
    modules = modules_after(f"{CELERY}\nfrom console.inbox import questions, undo")

    assert modules & {*RENDERERS} == set()


def test_the_parent_of_the_web_processes_imports_no_client_of_a_database(
    process_environment: dict[str, str],
) -> None:
    listing = "import json, sys; from orchestrator import web_worker; print(json.dumps(list(sys.modules)))"

    modules = subprocess.check_output([sys.executable, "-c", listing], env=process_environment, timeout=60)

    assert set(json.loads(modules)) & {"psycopg", "django.db", "redis", "celery", "pymongo"} == set()


ADDRESSES = {
    "console:home": "/",
    "admin:index": "/admin/",
    "admin:break-glass": "/admin/break-glass/",
    "admin:activities_activity_changelist": "/admin/activities/activity/",
    "api_document:schema": "/api/v1/schema/",
    "api_document:docs": "/api/v1/docs/",
}


@pytest.mark.parametrize(
    "holds", ["reverse(name) == address", "resolve(address).view_name == name"], ids=["reversed", "resolved"]
)
def test_addresses_of_parts_that_are_not_imported_yet_are_reversed_and_resolved(
    holds: str, modules_after: Callable[[str], set[str]]
) -> None:
    web = "import orchestrator.wsgi; from django.urls import resolve, reverse"

    modules = modules_after(f"{web}\nfor name, address in {ADDRESSES!r}.items(): assert {holds}, name")

    assert set(PAGES) <= modules


def test_system_checks_import_the_admin_although_no_page_was_requested(
    modules_after: Callable[[str], set[str]],
) -> None:
    program = """
from django.contrib import admin
from django.core.management import call_command
call_command("check", "--tag", "admin")
assert admin.site._registry
"""

    assert "orchestrator.admin" in modules_after(program)
