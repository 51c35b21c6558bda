# Longwire's commands. Everything lands in .venv; `make clean` undoes it. PYTHON=… chooses the interpreter.
#
# Stamp files in .venv say what is installed, so that the second time costs nothing; they are older than what they were made
# from only when that has changed.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL: # two pips in one environment break each other

VENV := .venv
BIN := $(VENV)/bin
LOG := $(VENV)/install.log
INSTALL := $(BIN)/python -P src/longwire/engines/local_install.py --log $(LOG)
NODE := tests/e2e/node
GUNICORN := 27.0.1

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)

# $(call quietly,LABEL,COMMAND): one line with a dot a second; what COMMAND says goes to the log, its end here if it fails.
define quietly
@printf '  $(1) '; (while sleep 1; do printf .; done) & dots=$$!; \
($(2)) >>$(LOG) 2>&1; code=$$?; kill $$dots; \
if [ $$code -eq 0 ]; then echo ' done'; \
else echo ' FAILED'; tail -n 40 $(LOG); echo 'The whole of it is in $(LOG).'; exit $$code; fi
endef

.PHONY: help demo serve test soak bench lint clean

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '  make %-8s %s\n' "$$name" "$$text"; done

demo: $(VENV)/project.stamp $(VENV)/engine.stamp ## Stream from a real model, kill its process, cut its connection, prove that nothing was lost
	@$(BIN)/longwire demo $(ARGS)

serve: $(VENV)/project.stamp $(VENV)/engine.stamp ## Start the gateway on the embedded model at 127.0.0.1:8080 (taken? ARGS='--port 9000 --admin-port 9001')
	@exec $(BIN)/longwire serve --engine local $(ARGS)

test: lint $(VENV)/engine.stamp $(VENV)/corpus.stamp $(VENV)/node.stamp ## Run the linters and all tests (PYTEST_ARGS='tests/wire -x')
	$(BIN)/python -m pytest $(PYTEST_ARGS)

soak: $(VENV)/test.stamp ## Kill shards under all kinds of clients for MINUTES=10 (SEED=... repeats one)
	$(BIN)/python -m tests.survival.soak $(or $(MINUTES),10) $(SEED)

bench: $(VENV)/project.stamp ## Measure Longwire beside its peers, which are installed first, into benchmarks/RESULTS.md (ARGS='--only a c')
	@$(BIN)/python benchmarks/side_by_side.py $(ARGS)

lint: $(VENV)/test.stamp ## Run ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/mypy

clean: ## Remove .venv, caches and what was built
	rm -rf $(VENV) build dist src/*.egg-info $(NODE)/node_modules .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

# What the above stand on.

$(VENV)/python.stamp:
	@[ -n "$(PYTHON)" ] || { echo 'Longwire needs Python 3.11 or newer: install one, or name it with make PYTHON=/path/to/python3.' >&2; exit 1; }
	@echo 'Setting up in $(VENV) (only once; all that is said goes to $(LOG))'
	@mkdir -p $(VENV)
	$(call quietly,virtual environment,"$(PYTHON)" -m venv $(VENV))
	@touch $@

$(VENV)/project.stamp: pyproject.toml $(VENV)/python.stamp
	@$(INSTALL) pip 'Longwire and what it needs' install -e .
	@touch $@

$(VENV)/test.stamp: pyproject.toml $(VENV)/python.stamp
	@$(INSTALL) pip 'Longwire and its tests' install -e '.[test]'
	@touch $(VENV)/project.stamp $@

# By its own file and not by `longwire local install`: this must work whatever state the rest is in.
$(VENV)/engine.stamp: src/longwire/engines/local_install.py $(VENV)/python.stamp
	@$(INSTALL) engine
	@touch $@

# Gunicorn's well- and ill-formed HTTP requests (MIT), which only its source distribution has.
$(VENV)/corpus.stamp: Makefile $(VENV)/python.stamp
	@rm -rf $(VENV)/corpus && mkdir -p $(VENV)/corpus
	@$(INSTALL) pip 'HTTP test corpus' download --no-deps --no-binary gunicorn --dest $(VENV)/corpus gunicorn==$(GUNICORN)
	@cd $(VENV)/corpus && tar -xzf gunicorn-$(GUNICORN).tar.gz && mv gunicorn-$(GUNICORN)/tests/requests gunicorn && rm -r gunicorn-$(GUNICORN)*
	@touch $@

# Node's clients, for those who have Node; without it their tests are skipped.
$(VENV)/node.stamp: $(wildcard $(NODE)/package-lock.json) $(VENV)/python.stamp
	@if command -v npm >/dev/null && [ -f $(NODE)/package-lock.json ]; then $(MAKE) --no-print-directory node-clients; fi
	@touch $@

.PHONY: node-clients
node-clients:
	$(call quietly,Node clients,cd $(NODE) && npm ci --no-audit --no-fund)
