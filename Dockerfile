# One image for every process; docker-compose.yml says which one a container runs.

# PYTHON_IMAGE may name another base, best with the digest that was tried: deploy/pin-images.sh
ARG PYTHON_IMAGE=python:3.12-slim
FROM ${PYTHON_IMAGE} AS packages
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY requirements /tmp/requirements
# What else is wanted of requirements/, such as EXTRAS="llm otel passkeys". Each list has the pins of base, so any of them go together.
ARG EXTRAS=
RUN python -m venv /opt/venv && for list in base $EXTRAS; do \
      /opt/venv/bin/pip install --require-virtualenv -r /tmp/requirements/$list.txt || exit 1; \
    done

FROM ${PYTHON_IMAGE}
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DJANGO_SETTINGS_MODULE=orchestrator.settings.production \
    ORCHESTRATOR_HOME=/srv/orchestrator
# Its home is only read: the processes write to the servers, to /tmp and to nothing else. Programs of other users go through it to their folders.
RUN useradd --no-log-init --uid 10001 --create-home --home-dir /srv/orchestrator orchestrator && chmod 0711 /srv/orchestrator
COPY --from=packages /opt/venv /opt/venv
WORKDIR /app
COPY manage.py pyproject.toml README.md LICENSE ./
COPY tenants tenants
COPY agents agents
COPY activities activities
COPY pipelines pipelines
COPY console console
COPY orchestrator orchestrator
COPY templates templates
# Nothing may be written when it runs, so each start would compile all of it anew: a quarter more time of a processor.
RUN python -m compileall -q tenants agents activities pipelines console orchestrator
# Reaches no server and needs no secret: production's settings let this one command pass without any.
RUN python manage.py collectstatic --noinput
USER orchestrator
EXPOSE 8000 5555
CMD ["python", "-m", "orchestrator.processes", "web"]
