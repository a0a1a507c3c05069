# Two commands on a fresh clone: `make demo` and `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH := 2.13.0

.DEFAULT_GOAL := help
.PHONY: help setup test lint types imports

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv and install torch and the project into it

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet "torch==$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[tensor,plot]" --group dev
	@touch $@

lint: $(STAMP) ## ruff: format and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP) ## the type gate
	$(BIN)/pyrefly check

imports: $(STAMP) ## the arrows between the rooms
	$(BIN)/lint-imports

test: lint types imports ## lint, types, import rules, tests, doc examples
	$(BIN)/pytest
