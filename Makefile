# `make` alone lists the targets. Everything runs in .venv, which is made on demand from the first Python that will do.

.DEFAULT_GOAL := help
.PHONY: help demo demo-model up test test-fast chaos compose-check cluster-check ecosystem-check fuzz lint docs docs-serve screenshots bench requirements audit sbom clean

VENV := .venv
RUN := $(VENV)/bin/python
# -qq: errors only, as pip warns about each entry of a machine's configuration. --no-compile: Python compiles what is used.
PIP := $(RUN) -m pip install -qq --disable-pip-version-check --no-input --no-compile

# uv installs in a fraction of pip's time, but it does not know pip's configuration, such as a mirror: if it fails, pip installs.
# --no-deps: the lists are complete.
define install
$(PIP) -r requirements/uv.txt && $(VENV)/bin/uv pip install -q --python $(RUN) --no-deps $(1) 2>/dev/null || $(PIP) --no-deps $(1)
endef

# What Python compiles is kept inside $(VENV), whatever the environment says: else each of the many processes compiles Django
# anew, which takes it 8 s of CPU instead of 2.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(abspath $(VENV))/compiled

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

demo: $(VENV)/.run ## Run a real pipeline and watch it; INPUT=path uses your own file, VERBOSE=1 prints everything
	@$(RUN) manage.py demo $${INPUT:+--input "$$INPUT"} $${VERBOSE:+--verbose}

demo-model: $(VENV)/.model ## Run the pipeline with a real language model on this machine, offline; the first time builds llama.cpp
	@$(RUN) manage.py demo_model $${INPUT:+--input "$$INPUT"}

up: $(VENV)/.run ## Run everything in the foreground until Ctrl-C; PORT and FLOWER_PORT choose ports
	@$(RUN) manage.py up

# Four processes, whatever the cores: each waits part of the time, for PostgreSQL, for a browser, for processes that start.
test: $(VENV)/.dev ## Run the test suite against real servers; what fails is tried again; ARGS="-k word" is handed to pytest
	$(RUN) -m tests.run --processes 4 $(ARGS)

test-fast: $(VENV)/.dev ## Run the tests that need no server, in half a minute; ARGS="-k word" is handed to pytest
	ORCHESTRATOR_TEST_SERVERS=none $(RUN) -m pytest -p tests.forks --processes 2 -q tests/unit tests/architecture clients/python/tests $(ARGS)

chaos: $(VENV)/.run ## Torment an installation of its own and check what tenants saw; MINUTES=2 SEED=7 KINDS=worker-killed,redis-flushed
	@$(RUN) -m tests.chaos --minutes $(or $(MINUTES),2) $(if $(SEED),--seed $(SEED)) $(if $(KINDS),--kinds $(KINDS)) $(ARGS)

compose-check: $(VENV)/.dev ## Start docker-compose.yml in real containers, use it, kill a worker; needs podman and root
	@$(RUN) -m tests.containers compose $(ARGS)

cluster-check: $(VENV)/.dev ## Three hosts in containers, one cut off and one killed while they work; needs podman and root
	@$(RUN) -m tests.containers cluster $(ARGS)

ecosystem-check: $(VENV)/.dev ## Install the agents of examples/agents/ecosystem apart, 500 MB, and let the engine give them work
	$(RUN) -m venv .venv-ecosystem
	.venv-ecosystem/bin/python -m pip install -qq --disable-pip-version-check -r examples/agents/ecosystem/requirements.txt
	$(RUN) -m pytest -q tests/integration/sample_agents/test_ecosystem_agents.py $(ARGS)

fuzz: $(VENV)/.dev ## Send made-up requests to every operation of the API for long; EXAMPLES=200 of each
	FUZZ_EXAMPLES=$(or $(EXAMPLES),200) $(RUN) -m pytest -p no:randomly --timeout=0 tests/integration/test_api_fuzz.py $(ARGS)

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

docs: $(VENV)/.dev ## Renew the generated parts of the documentation and build it as a site into site/
	$(RUN) manage.py draw_lifecycle
	$(RUN) -m tests.fuzzing.snapshot
	$(RUN) -m tests.requirements
	@# Not -q: it silences the warnings that --strict counts.
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict
	@echo "Open site/index.html in a browser; it can be searched when it is served: make docs-serve."

docs-serve: $(VENV)/.dev ## Show the documentation at http://127.0.0.1:8001 and build it anew with each change; PORT chooses another port
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs serve -a 127.0.0.1:$(or $(PORT),8001)

screenshots: $(VENV)/.dev ## Take the pictures of docs/screens.md; needs Chromium. PAGES="inbox runs" takes some
	$(RUN) -m tests.screenshots $(PAGES)

bench: $(VENV)/.run ## Measure the engine
	$(RUN) -m benchmarks engine

# The order matters: each file keeps the pins of those before it, so any of them can be installed together.
requirements: $(VENV)/.dev ## Compile requirements/*.txt from pyproject.toml; UPGRADE=--upgrade takes newer versions
	$(call compile,base)
	$(call compile,embedded,--extra embedded -c requirements/base.txt)
	$(call compile,dev,--extra a2a --extra embedded --extra llm --extra mcp --extra passkeys --extra dev -c requirements/embedded.txt)
	$(call compile,a2a,--extra a2a -c requirements/dev.txt)
	$(call compile,llm,--extra llm -c requirements/dev.txt)
	$(call compile,mcp,--extra mcp -c requirements/dev.txt)
	$(call compile,model,--extra embedded --extra llm --extra model -c requirements/dev.txt)
	$(call compile,passkeys,--extra passkeys -c requirements/dev.txt)
	$(call compile,otel,--extra otel -c requirements/dev.txt -c requirements/llm.txt)
	$(call compile,uv,-c requirements/dev.txt,--group install)

define compile
$(VENV)/bin/uv pip compile $(or $(3),pyproject.toml) -q $(UPGRADE) --universal --python-version 3.11 --no-annotate --no-strip-extras --generate-hashes \
    --custom-compile-command "make requirements" $(2) -o requirements/$(1).txt
endef

# These two need a registry, and take their tools from it for the occasion (uvx), beside what is installed.
audit: $(VENV)/.dev ## Look for known vulnerabilities, risky code and secrets; says what it could not look at
	@$(RUN) -m tests.supply_chain.audit

sbom: $(VENV)/.dev ## Write dist/sbom.json: what the locked requirements consist of, in CycloneDX
	@mkdir -p dist
	@$(VENV)/bin/uvx -q --from cyclonedx-bom==7.3.0 cyclonedx-py requirements requirements/base.txt \
	    --pyproject pyproject.toml --output-format JSON --output-reproducible -o dist/sbom.json
	@echo "dist/sbom.json"

clean: ## Stop the servers of var/ and delete it with their data, .venv and all caches
	@if [ -d var ] && [ -x $(RUN) ]; then $(RUN) -m orchestrator.embedded stop --home var >/dev/null; fi
	rm -rf var $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .grimp_cache .hypothesis .coverage .coverage.* htmlcov
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The demo needs the servers, not the tools: it installs in half the time. Beside `make up` the command of the MCP server works, too.
$(VENV)/.run: $(RUN) pyproject.toml requirements/embedded.txt requirements/mcp.txt
	@echo "Installing the requirements into $(VENV) ..."
	@$(call install,-r requirements/embedded.txt -r requirements/mcp.txt)
	@$(call install,--editable .)
	@touch $@

# The compiler is looked for first: without it pip fails late and at length.
$(VENV)/.model: $(VENV)/.run requirements/model.txt
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
	    { echo "llama.cpp has to be built, and there is no C++ compiler. Install one (on Debian: apt install g++)." >&2; exit 1; }
	@echo "Installing a small language model and building llama.cpp into $(VENV), once; most of the time goes into the compiler ..."
	@$(RUN) -m orchestrator.demo.model_building requirements/model.txt
	@touch $@

$(VENV)/.dev: $(RUN) pyproject.toml requirements/dev.txt
	@echo "Installing the requirements and tools into $(VENV) ..."
	@$(call install,-r requirements/dev.txt)
	@$(call install,--editable .)
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
