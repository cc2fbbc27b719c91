"""What a process imports at its start, because each import costs memory and time in every process.

Parts that are imported later stay complete: their addresses can be reversed and resolved, and checks include them.
"""

from __future__ import annotations

import json
import subprocess
import sys

from tenants import tokens
from tenants.models import Tenant

#: Modules of pages and of the API's document, and libraries that few requests and runs need.
PAGES = (
    "console.urls",
    "console.page",
    "orchestrator.admin",
    "tenants.admin",
    "unfold.admin",
    "markdown_it",
    "nh3",
)
DESCRIPTION = ("orchestrator.api_document", "tenants.api.schema", "drf_spectacular.plumbing", "django.test")
LIBRARIES = (
    "pymongo", "cryptography.hazmat", "jsonschema", "httpx2", "anthropic", "openai", "mcp", "rich", "opentelemetry.sdk.metrics"
)  # fmt: skip
API = ("orchestrator.urls", "rest_framework.views")

#: Prints the modules that a process has imported after a common start and each of several ends, which run in forks of their own.
LIST_MODULES = """
import json, os, sys
exec(sys.argv[1])
for end in json.loads(sys.argv[2]):
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0, end
    else:
        exec(end)
        print(json.dumps(sorted(sys.modules)), flush=True)
        os._exit(0)
"""
#: As gunicorn calls it, without Django's test client, which imports much itself.
FIRST_REQUEST = """
import io, os, sys
from orchestrator.wsgi import application
request = {
    "REQUEST_METHOD": "GET", "PATH_INFO": "/api/v1/queues/", "QUERY_STRING": "", "SERVER_NAME": "127.0.0.1", "SERVER_PORT": "80",
    "HTTP_HOST": "127.0.0.1", "HTTP_AUTHORIZATION": "Bearer " + os.environ["TOKEN"], "REMOTE_ADDR": "127.0.0.1", "wsgi.input": io.BytesIO(),
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


def modules_of(environment: dict[str, str], begin: str, *ends: str) -> list[set[str]]:
    process = subprocess.run(
        [sys.executable, "-c", LIST_MODULES, begin, json.dumps(ends or [""])],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return [set(json.loads(line)) for line in process.stdout.splitlines() if line.startswith("[")]


def test_a_web_process_has_imported_the_api_and_no_pages_after_its_first_request(
    process_environment: dict[str, str], tenant: Tenant
) -> None:
    _, secret = tokens.create(tenant, "admin", "first")

    (modules,) = modules_of({**process_environment, "TOKEN": secret}, FIRST_REQUEST)

    assert set(API) <= modules
    assert modules & {*PAGES, *DESCRIPTION, *LIBRARIES} == set()


def test_worker_and_beat_import_neither_pages_nor_the_api(process_environment: dict[str, str]) -> None:
    of_worker, of_beat = modules_of(process_environment, CELERY, WORKER, BEAT)

    assert of_worker & {*PAGES, *DESCRIPTION, *LIBRARIES, *API} == set()
    assert of_beat & {*PAGES, *DESCRIPTION, *LIBRARIES, *API} == set()


def test_the_parent_of_the_web_processes_imports_no_client_of_a_database(
    process_environment: dict[str, str],
) -> None:
    (modules,) = modules_of(process_environment, "from orchestrator import web_worker")

    assert modules & {"psycopg", "django.db", "redis", "celery", "pymongo"} == set()


ADDRESSES = {
    "console:home": "/",
    "admin:index": "/admin/",
    "admin:break-glass": "/admin/break-glass/",
    "admin:activities_activity_changelist": "/admin/activities/activity/",
    "api_document:schema": "/api/v1/schema/",
    "api_document:docs": "/api/v1/docs/",
}


def test_addresses_of_parts_that_are_not_imported_yet_are_reversed_and_resolved(
    process_environment: dict[str, str],
) -> None:
    web = "import orchestrator.wsgi; from django.urls import resolve, reverse"
    reversing, resolving = (
        f"for name, address in {ADDRESSES!r}.items(): assert {holds}, name"
        for holds in ("reverse(name) == address", "resolve(address).view_name == name")
    )

    for modules in modules_of(process_environment, web, reversing, resolving):
        assert set(PAGES) <= modules


def test_system_checks_import_the_admin_although_no_page_was_requested(
    process_environment: dict[str, str],
) -> None:
    program = """
import django
django.setup()
from django.contrib import admin
from django.core.management import call_command
call_command("check", "--tag", "admin")
assert admin.site._registry
"""

    (modules,) = modules_of(process_environment, program)

    assert "orchestrator.admin" in modules
