from tests.integration.test_command_line import *


def test_look(engine, tenant, world, make_tenant):
    import sys

    make_tenant("globex", max_concurrency=3)
    for line in (
        "queues",
        "queues qa --tenant acme",
        f"why {world.waiting}",
        "inbox --tenant acme",
        "replay failures --tenant acme",
        "schedules --tenant acme",
        "tenants",
        f"replay run {world.run} --from-step brief --dry-run --tenant acme",
    ):
        print("\n$", line)
        print(called(*line.split()))
        t = Terminal()
        print(called(*line.split(), stdout=t))
