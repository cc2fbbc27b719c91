# One image for every process; docker-compose.yml says which one a container runs.

FROM python:3.12-slim AS packages
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY requirements/base.txt /tmp/base.txt
RUN python -m venv /opt/venv && /opt/venv/bin/pip install --require-virtualenv -r /tmp/base.txt

FROM python:3.12-slim
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DJANGO_SETTINGS_MODULE=orchestrator.settings.production \
    ORCHESTRATOR_HOME=/srv/orchestrator
# Its home is only read: the processes write to the servers, to /tmp and to nothing else.
RUN useradd --system --uid 10001 --create-home --home-dir /srv/orchestrator orchestrator
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
# Needs the settings to load, no server: the values are placeholders and stay in this one command.
RUN DATABASE_URL=postgresql://nobody@127.0.0.1/none REDIS_URL=redis://127.0.0.1 MONGODB_URI=mongodb://127.0.0.1/none \
    SECRET_KEY=only-for-collectstatic-only-for-collectstatic-only-for-collectstatic \
    FIELD_ENCRYPTION_KEYS=none:00 ALLOWED_HOSTS=localhost ORCHESTRATOR_PUBLIC_URL=https://localhost \
    python manage.py collectstatic --noinput
USER orchestrator
EXPOSE 8000 5555
CMD ["python", "-m", "orchestrator.processes", "web"]
