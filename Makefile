# The developer's whole interface. Needs Python 3.11+ and make; everything else goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Every version is pinned, also in pip's isolated builds: a plain `torch` must never be resolved on its own.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install demo test check format bench validate fit reality site soak clean

help: ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(STAMP) ## create .venv and install Stallwise with its development tools

# Made again only when the dependencies change.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[torch,data,frameworks,ray,dev]'
	@touch $(STAMP)

$(VENV)/.peers: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	@touch $(VENV)/.peers

demo: $(STAMP) ## profile a bundled training job (JPEGs, a small CNN, two processes) and show where its time goes
	@rm -rf build/demo-run
	@$(BIN)/stallwise profile --nproc-per-node 2 --max-time 15 -o build/demo-run \
		examples/images.py --data build/demo-images

# Three files at a time: on two cores much of a test is waiting. What compares measured times runs by itself.
test: $(STAMP) check ## every check and every test
	@$(BIN)/python -m compileall -q src tests # programs that tests start would compile them anew where Python may not write
	$(BIN)/python -m pytest -m 'not soak and not alone' --numprocesses 3 --dist loadfile
	$(BIN)/python -m pytest -m 'alone and not soak'

check: $(STAMP) ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## apply lint fixes and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) $(VENV)/.peers ## every performance claim as a ratio to a peer in the same run
	$(BIN)/python -m benchmarks

validate: $(STAMP) ## every published figure against ours: docs/VALIDATION.md, build/validation.json
	$(BIN)/python -m validation

fit: $(STAMP) ## fit the shipped coefficients on the public measurements; prints grouped cross-validation
	$(BIN)/python -m fitting

reality: $(STAMP) ## predictions of our own against real runs on several hosts (root, ten quiet minutes); keeps the figures
	$(BIN)/python -m validation.reality

site: $(STAMP) ## the documentation as pages: build/site/index.html
	$(BIN)/python -m docsite

soak: $(STAMP) ## the slow tests, and new examples for every law
	HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -m 'not soak and not alone' --numprocesses 2 --dist loadfile
	$(BIN)/python -m pytest -m soak

clean: ## remove what the commands above made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
