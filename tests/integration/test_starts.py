"""What a process loads before it has anything to do. Each of these is much memory and time, in every process that is started.

In the parts that are loaded later nothing may get lost: their addresses are there for anyone who asks, and checks look at all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys

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

#: What a process has loaded that begins in one way and goes on in several: each time in a fork that knows nothing of the others.
LOADED = """
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
#: As gunicorn calls it, without Django's test client, which loads much by itself.
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


def loaded_by(environment: dict[str, str], begin: str, *ends: str) -> list[set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, begin, json.dumps(ends or [""])],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [set(json.loads(line)) for line in done.stdout.splitlines() if line.startswith("[")]


def test_a_web_process_has_loaded_the_api_and_no_pages_after_its_first_request(
    process_environment: dict[str, str], tenant: Tenant
) -> None:
    _, secret = tokens.create(tenant, "admin", "first")

    (loaded,) = loaded_by({**process_environment, "TOKEN": secret}, FIRST_REQUEST)

    assert set(API) <= loaded
    assert loaded & {*PAGES, *DESCRIPTION, *LIBRARIES} == set()


def test_worker_and_beat_load_neither_pages_nor_the_api(process_environment: dict[str, str]) -> None:
    of_worker, of_beat = loaded_by(process_environment, CELERY, WORKER, BEAT)

    assert of_worker & {*PAGES, *DESCRIPTION, *LIBRARIES, *API} == set()
    assert of_beat & {*PAGES, *DESCRIPTION, *LIBRARIES, *API} == set()


def test_the_parent_of_the_web_processes_loads_no_client_of_a_database(
    process_environment: dict[str, str],
) -> None:
    (loaded,) = loaded_by(process_environment, "from orchestrator import web_worker")

    assert loaded & {"psycopg", "django.db", "redis", "celery", "pymongo"} == set()


ADDRESSES = {
    "console:home": "/",
    "admin:index": "/admin/",
    "admin:break-glass": "/admin/break-glass/",
    "admin:activities_activity_changelist": "/admin/activities/activity/",
    "api_document:schema": "/api/v1/schema/",
    "api_document:docs": "/api/v1/docs/",
}


def test_addresses_of_parts_that_are_not_loaded_yet_are_made_and_found(
    process_environment: dict[str, str],
) -> None:
    web = "import orchestrator.wsgi; from django.urls import resolve, reverse"
    made, found = (
        f"for name, address in {ADDRESSES!r}.items(): assert {holds}, name"
        for holds in ("reverse(name) == address", "resolve(address).view_name == name")
    )

    for loaded in loaded_by(process_environment, web, made, found):
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

    (loaded,) = loaded_by(process_environment, program)

    assert "orchestrator.admin" in loaded
