"""The manifests of deploy/kubernetes run what docker-compose.yml runs, with settings that exist, and can be stopped safely."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import promql_parser
import pytest
import yaml
from django.conf import settings
from django.urls import resolve

from agents.routing import queue_of
from orchestrator.embedded.valkey import REDIS_USERS
from orchestrator.metrics import CATALOGUE
from orchestrator.settings.unsafe import NEEDED, variables_needed_by
from tests.architecture import tree

FOLDER = tree.ROOT / "deploy" / "kubernetes"
ROLE = "blog-writer"
PROCESSES = ("web", "worker", f"worker-{ROLE}", "system", "beat", "flower")
WORKERS = ("worker", f"worker-{ROLE}", "system")

#: The service of docker-compose.yml that a manifest corresponds to.
SERVICE = {f"worker-{ROLE}": "worker"}
#: Keys of the Secret that are not names of settings: one login or user per kind of process.
KEYS = {"DATABASE_URL_OWNER", "DATABASE_URL_SYSTEM", *(f"REDIS_URL_{user.upper()}" for user in REDIS_USERS)}


@cache
def _documents() -> tuple[dict[str, Any], ...]:
    files = sorted(FOLDER.glob("*.yaml"))
    return tuple(each for path in files for each in yaml.safe_load_all(path.read_text(encoding="utf-8")))


def _of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in _documents() if each["kind"] == kind}


def test_every_manifest_agrees_with_the_schema_of_its_kind() -> None:
    """Members that the schema does not know are refused. KEDA's and kustomize's kinds are in no schema of Kubernetes."""
    kubernetes_validate = pytest.importorskip(
        "kubernetes_validate",
        reason="72 MB of schemas: `pip install kubernetes-validate` where manifests are changed",
    )
    known = [each for each in _documents() if each["kind"] not in {"ScaledObject", "Kustomization"}]

    for manifest in known:
        kubernetes_validate.validate(manifest, "1.37", strict=True)

    assert len(known) > 10


@cache
def _compose() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((tree.ROOT / "docker-compose.yml").read_text(encoding="utf-8"))[
        "services"
    ]
    return services


@cache
def _pods() -> dict[str, dict[str, Any]]:
    """Return every pod by the name of its deployment or job."""
    plain = {**_of_kind("Deployment"), **_of_kind("Job")}
    repeated = {name: each["spec"]["jobTemplate"] for name, each in _of_kind("CronJob").items()}
    return {name: each["spec"]["template"]["spec"] for name, each in {**plain, **repeated}.items()}


def _container(name: str) -> dict[str, Any]:
    container: dict[str, Any]
    (container,) = _pods()[name]["containers"]
    return container


def _environment(name: str) -> dict[str, str]:
    """Return the value of each variable, or the key of the Secret that it comes from."""
    (shared,) = _of_kind("ConfigMap").values()
    own = {
        each["name"]: each.get("value") or f"secret {each['valueFrom']['secretKeyRef']['key']}"
        for each in _container(name)["env"]
    }
    return {**shared["data"], **own}


def test_everything_that_docker_compose_runs_has_a_manifest() -> None:
    servers = {"postgres", "redis", "mongo"}

    assert {SERVICE.get(name, name) for name in _pods()} == (set(_compose()) - servers) | {"invariants"}


@pytest.mark.parametrize("name", ["web", "worker", "system", "beat", "flower", "migrate"])
def test_a_pod_runs_the_command_of_the_container(name: str) -> None:
    assert _container(name)["command"] == _compose()[name]["command"]


def test_workers_of_one_role_consume_its_queue_only() -> None:
    command = _container(f"worker-{ROLE}")["command"]

    assert command == [*_compose()["worker"]["command"], "--", "-Q", queue_of(ROLE)]
    assert f"WORKER_CONCURRENCY_{ROLE.upper().replace('-', '_')}" in _environment(f"worker-{ROLE}")


@pytest.mark.parametrize("name", [*PROCESSES, "migrate", "invariants"])
def test_a_pod_has_every_setting_that_production_needs_and_none_that_is_unknown(name: str) -> None:
    text = " ".join(module.text for module in tree.modules()) + (tree.ROOT / ".env.example").read_text(
        encoding="utf-8"
    )
    environment = _environment(name)

    assert set(variables_needed_by(_container(name)["command"])) <= environment.keys()
    assert environment["DJANGO_SETTINGS_MODULE"] == "orchestrator.settings.production"
    assert [
        variable
        for variable in environment
        if not re.search(rf"\b{variable}\b", text) and not variable.startswith("WORKER_CONCURRENCY_")
    ] == []


@pytest.mark.parametrize("name", PROCESSES)
def test_a_pod_connects_to_redis_as_the_user_of_its_kind(name: str) -> None:
    kind = re.search(r"REDIS_(\w+)_PASSWORD", _compose()[SERVICE.get(name, name)]["environment"]["REDIS_URL"])

    assert kind is not None
    assert _environment(name)["REDIS_URL"] == f"secret REDIS_URL_{kind[1]}"


def test_only_migrations_log_in_as_the_owner_of_the_tables() -> None:
    owners = [
        name for name in _pods() if _environment(name).get("DATABASE_URL") == "secret DATABASE_URL_OWNER"
    ]

    assert owners == ["migrate"]


@pytest.mark.parametrize("name", [*PROCESSES, "migrate"])
def test_a_pod_gets_no_secret_that_the_container_does_not_get(name: str) -> None:
    secrets = {variable for variable, value in _environment(name).items() if value.startswith("secret ")}

    assert secrets <= set(_compose()[SERVICE.get(name, name)]["environment"])


def test_network_policies_allow_a_pod_only_the_named_connections() -> None:
    policies = _of_kind("NetworkPolicy")
    everybody = {"matchLabels": {"app.kubernetes.io/name": "orchestrator"}}
    labels = {
        each["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
        for each in _of_kind("Deployment").values()
    }

    assert policies["nothing"]["spec"] == {"podSelector": everybody, "policyTypes": ["Ingress", "Egress"]}
    assert [name for name, policy in policies.items() if policy["spec"].get("ingress")] == ["web-is-asked"]
    (databases,) = policies["databases"]["spec"]["podSelector"]["matchExpressions"]
    assert (databases["operator"], databases["values"]) == ("NotIn", ["flower"])
    (callers,) = policies["callers"]["spec"]["podSelector"]["matchExpressions"]
    assert set(callers["values"]) == labels - {"beat", "flower"}
    for block in (place["ipBlock"] for rule in policies["callers"]["spec"]["egress"] for place in rule["to"]):
        assert block["except"], (
            "connections to our networks need AGENT_EGRESS_ALLOW and a policy of their own"
        )


def test_every_secret_is_listed_where_the_documents_say_how_to_create_it() -> None:
    text = (FOLDER / "configuration.yaml").read_text(encoding="utf-8")
    keys = {
        value.removeprefix("secret ")
        for name in _pods()
        for value in _environment(name).values()
        if value.startswith("secret ")
    }

    assert keys - KEYS <= {*NEEDED, "FLOWER_BASIC_AUTH"}
    assert [key for key in keys if key not in text] == []
    assert "Secret" not in {each["kind"] for each in _documents()}


@pytest.mark.parametrize("name", PROCESSES)
def test_every_pod_has_a_liveness_probe(name: str) -> None:
    probe = _container(name)["livenessProbe"]
    compose = _compose()[SERVICE.get(name, name)]["healthcheck"]["test"]

    if "exec" in probe:
        shell, option, command = probe["exec"]["command"]
        assert (shell, option) == ("sh", "-c")
        assert command == compose[1].replace("$$", "$")
    else:
        assert probe["httpGet"]["path"] in compose[-1]


def test_the_readiness_probe_of_web_asks_readyz_under_an_allowed_host_name() -> None:
    container = _container("web")
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    headers = {
        header["name"]: header["value"] for probe in probes.values() for header in probe["httpHeaders"]
    }

    assert {kind: probe["path"] for kind, probe in probes.items()} == {
        "startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz",
    }  # fmt: skip
    assert all(resolve(probe["path"]) for probe in probes.values())
    assert headers == {"Host": _environment("web")["ALLOWED_HOSTS"], "X-Forwarded-Proto": "https"}


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_has_time_to_end_its_runs_before_it_is_killed(name: str) -> None:
    grace = _pods()[name]["terminationGracePeriodSeconds"]
    longest = 60 if name == "system" else settings.ORCHESTRATOR_DEFAULT_TIMEOUT_SECONDS

    assert grace >= longest + settings.CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT + 10


@pytest.mark.parametrize("name", PROCESSES)
def test_a_container_has_the_same_time_to_end_in_kubernetes_and_in_compose(name: str) -> None:
    service = _compose()[SERVICE.get(name, name)]

    assert service["stop_grace_period"] == f"{_pods()[name]['terminationGracePeriodSeconds']}s"


@pytest.mark.parametrize("name", ["web", *WORKERS])
def test_draining_a_node_does_not_evict_all_pods_at_once(name: str) -> None:
    budget = _of_kind("PodDisruptionBudget")[name]["spec"]

    assert budget["selector"] == _of_kind("Deployment")[name]["spec"]["selector"]
    assert budget.get("minAvailable", 0) >= 1 or budget["maxUnavailable"] == 1


@pytest.mark.parametrize("name", [*PROCESSES, "migrate", "invariants"])
def test_a_pod_has_a_read_only_file_system_and_gains_no_rights(name: str) -> None:
    pod, container = _pods()[name], _container(name)

    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }


def test_only_processes_that_run_programs_may_switch_users() -> None:
    container, service = _container("command-line"), _compose()["command-line"]

    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": service["cap_add"]},
    }
    assert container["command"][:-1] == service["command"][:-1]
    assert _environment("command-line").keys() >= set(variables_needed_by(container["command"]))
    assert "ORCHESTRATOR_CLI_SHARED_USER" not in _environment("command-line")


@pytest.mark.parametrize("name", ["worker", f"worker-{ROLE}"])
def test_workers_are_scaled_by_the_waiting_work_per_seat(name: str) -> None:
    scaled = _of_kind("ScaledObject")[name]["spec"]
    (trigger,) = scaled["triggers"]
    query = trigger["metadata"]["query"]
    seats = [
        value for variable, value in _environment(name).items() if variable.startswith("WORKER_CONCURRENCY")
    ]

    promql_parser.parse(query)
    named = set(re.findall(r"orchestrator_\w+", query))
    assert named <= {declared.query_name for declared in CATALOGUE.values()}
    assert "orchestrator_queue_waiting" in named
    assert set(re.findall(r'role="([^"]+)"', query)) == (set() if name == "worker" else {ROLE})
    assert scaled["scaleTargetRef"] == {"name": name}
    assert "replicas" not in _of_kind("Deployment")[name]["spec"], "every release would undo the scaling"
    assert [trigger["metadata"]["threshold"]] == seats


def test_a_worker_for_another_role_is_the_same_manifest_with_other_names() -> None:
    path = FOLDER / f"role-{ROLE}.yaml"
    text = path.read_text(encoding="utf-8")
    replaced = text.replace(ROLE, "seo").replace("BLOG_WRITER", "SEO")

    assert "s/blog-writer/seo/g; s/BLOG_WRITER/SEO/" in text
    assert not re.search(r"blog.writer", replaced.split("\n", 1)[1], re.IGNORECASE)
    kinds = [each["kind"] for each in yaml.safe_load_all(replaced)]
    assert kinds == ["Deployment", "PodDisruptionBudget", "ScaledObject"]
    assert text.count("BLOG_WRITER") == 2, "sed replaces one in each line"


def test_every_resource_that_kustomize_names_exists() -> None:
    (whole,) = (each for each in _documents() if each["kind"] == "Kustomization")
    files = {path.name for path in FOLDER.glob("*.yaml")}

    assert {*whole["resources"], f"role-{ROLE}.yaml", "command-line.yaml", "kustomization.yaml"} == files
    assert whole["images"][0]["name"] == _container("web")["image"].partition(":")[0]
