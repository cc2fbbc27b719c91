"""What a process loads before it has anything to do. Each of these is much memory and time, in every process that is started.

In the parts that are loaded later nothing may get lost: their addresses are there for anyone who asks, and checks look at all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tenants import tokens
from tenants.models import Tenant

#: What makes pages and the API's description, and what few requests and few runs need.
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
LIBRARIES = ("pymongo", "cryptography.hazmat", "jsonschema", "httpx2", "anthropic", "openai", "mcp")
API = ("orchestrator.urls", "rest_framework.views")

LOADED = "import json, sys; print(json.dumps(sorted(sys.modules)))"
#: As gunicorn calls it, without Django's test client, which loads much by itself.
FIRST_REQUEST = """
import io, sys
from orchestrator.wsgi import application
request = {
    "REQUEST_METHOD": "GET", "PATH_INFO": "/api/v1/queues/", "QUERY_STRING": "", "SERVER_NAME": "127.0.0.1", "SERVER_PORT": "80",
    "HTTP_HOST": "127.0.0.1", "HTTP_AUTHORIZATION": "Bearer " + sys.argv[1], "REMOTE_ADDR": "127.0.0.1", "wsgi.input": io.BytesIO(),
    "wsgi.errors": sys.stderr, "wsgi.url_scheme": "http",
}
status = []
answer = application(request, lambda line, headers, error=None: status.append(line))
assert status == ["200 OK"], (status, b"".join(answer))
"""
WORKER = """
from orchestrator.celery import app
app.loader.init_worker()
from activities import intake, maintenance, worker
"""
BEAT = """
from orchestrator.celery import app
app.loader.init_worker()
from orchestrator import beat
"""


def loaded_by(program: str, environment: dict[str, str], *arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\n{LOADED}", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_a_web_process_has_loaded_the_api_and_no_pages_after_its_first_request(
    process_environment: dict[str, str], tenant: Tenant
) -> None:
    _, secret = tokens.create(tenant, "admin", "first")

    loaded = loaded_by(FIRST_REQUEST, process_environment, secret)

    assert set(API) <= loaded
    assert loaded & {*PAGES, *DESCRIPTION, *LIBRARIES} == set()


@pytest.mark.parametrize("program", [WORKER, BEAT], ids=["worker", "beat"])
def test_worker_and_beat_load_neither_pages_nor_the_api(
    program: str, process_environment: dict[str, str]
) -> None:
    loaded = loaded_by(program, process_environment)

    assert loaded & {*PAGES, *DESCRIPTION, *LIBRARIES, *API} == set()


def test_the_parent_of_the_web_processes_loads_no_client_of_a_database(
    process_environment: dict[str, str],
) -> None:
    loaded = loaded_by("from orchestrator import web_worker", process_environment)

    assert loaded & {"psycopg", "django.db", "redis", "celery", "pymongo"} == set()


ADDRESSES = {
    "console:home": "/",
    "admin:index": "/admin/",
    "admin:break-glass": "/admin/break-glass/",
    "admin:activities_activity_changelist": "/admin/activities/activity/",
    "api_document:schema": "/api/v1/schema/",
    "api_document:docs": "/api/v1/docs/",
}


@pytest.mark.parametrize(
    "holds", ["reverse(name) == address", "resolve(address).view_name == name"], ids=["made", "found"]
)
def test_addresses_of_parts_that_are_not_loaded_yet_are(
    holds: str, process_environment: dict[str, str]
) -> None:
    program = f"""
import orchestrator.wsgi
from django.urls import resolve, reverse
for name, address in {ADDRESSES!r}.items():
    assert {holds}, name
"""

    loaded = loaded_by(program, process_environment)

    assert set(PAGES) <= loaded


def test_checks_look_at_every_admin_though_nobody_has_asked_for_a_page(
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

    assert "orchestrator.admin" in loaded_by(program, process_environment)
