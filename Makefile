# The developer's whole interface. Needs Python 3.11+ and make; everything else goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Every version is pinned, also in pip's isolated builds: a plain `torch` must never be resolved on its own.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# What Python compiled is kept, also each test as pytest rewrites it: six workers did that anew, 7 s of a core each.
unexport PYTHONDONTWRITEBYTECODE
# Types of a fresh clone are checked against what another one left, file by file.
export MYPY_CACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/stallwise/mypy

.DEFAULT_GOAL := help
.PHONY: help install demo test system truth coverage lint audit check format bench scripts data validate fit reality site pictures soak clean

help: ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(STAMP) ## create .venv and install Stallwise with its development tools

# Made again only when the dependencies change.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[all,frameworks,dev]'
	@touch $(STAMP)

$(VENV)/.peers: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	@touch $(VENV)/.peers

demo: $(STAMP) ## profile a bundled training job (JPEGs, a small CNN, two processes) and show where its time goes
	@rm -rf build/demo-run
	@$(BIN)/stallwise profile --nproc-per-node 2 --until-certain --max-time 90s -o build/demo-run \
		examples/images.py --data build/demo-photos --images 1024 --side 512

# Programs that tests start would compile modules anew where Python may not write. A worker that dies ends the run: what
# it had shared with the other tests of its group is gone. STALLWISE_REQUIRE=all (CI) wants everything that tests need.
PYTEST := $(BIN)/python -m pytest
WORKERS ?= 6
IN_PARALLEL = --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# Tests wait for processes half of the time: types are checked meanwhile, and shown after them. Before them kernels are
# compiled, which takes half a minute of a core: in a test on a busy machine that could be minutes.
test: $(STAMP) lint $(if $(filter all,$(STALLWISE_REQUIRE)),system) ## every check and every test that does not measure time
	@mkdir -p build && $(BIN)/python -m compileall -q src tests
	@$(BIN)/mypy > build/mypy.log 2>&1 & types=$$!; \
	$(BIN)/python -m tests.kernels && $(PYTEST) $(IN_PARALLEL); tests=$$?; \
	wait $$types; types=$$?; cat build/mypy.log; \
	[ $$tests -eq 0 ] && [ $$types -eq 0 ]

system: $(STAMP) ## install what some tests need: Slurm, Chromium, … (root, Debian), SkyPilot and axe-core (user's cache)
	@$(BIN)/python -m tests.system

truth: $(STAMP) ## measured times against known ones, each measured once (a quiet machine, root); build/truth.json
	@$(BIN)/python -m tests.quiet
	$(PYTEST) -m 'truth and not soak'

coverage: $(STAMP) ## the tests of `make test` with line and branch coverage of src, started programs included
	@rm -rf build/coverage && mkdir -p build/coverage
	@$(BIN)/python -m tests.kernels
	-COVERAGE_PROCESS_START=$(CURDIR)/pyproject.toml $(BIN)/python -m coverage run -m pytest $(IN_PARALLEL) --timeout 600
	@$(BIN)/python -m coverage combine --quiet
	@rm -f build/coverage/data.* # of processes that were killed while they wrote
	@$(BIN)/python -m coverage report --sort=cover | tail -n 40
	@$(BIN)/python -m coverage html --quiet --directory build/coverage/html

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache

check: lint audit ## lint, format, layers of imports, types; known vulnerabilities and an SBOM of what the package needs
	$(BIN)/mypy

audit: $(STAMP) ## known vulnerabilities of what the package needs, where the service can be reached; build/sbom.json
	@$(BIN)/python -m tests.audit build/sbom.json

format: $(STAMP) ## apply lint fixes and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) $(VENV)/.peers ## every performance claim: ratios to peers in the same run, and absolute bars; evidence/benchmarks.md
	$(BIN)/python -m benchmarks

scripts: $(STAMP) ## any training scripts bare and under profile, as one table: make scripts PATHS="a/train.py b/train.py"
	$(BIN)/python -m benchmarks.scripts $(PATHS)

data: $(STAMP) ## the public measurements from their publishers, checked, into STALLWISE_DATA (../shared/data)
	$(BIN)/python -m validation.fetch

validate: $(STAMP) ## every published figure against ours: evidence/validation.md, build/validation.json
	$(BIN)/python -m validation

fit: $(STAMP) ## fit the shipped coefficients on the public measurements; prints grouped cross-validation
	$(BIN)/python -m fitting

reality: $(STAMP) ## predictions of our own against real runs on several hosts (root, ten quiet minutes); keeps the figures
	$(BIN)/python -m validation.reality

site: $(STAMP) ## the documentation as pages: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

pictures: $(STAMP) ## the pictures of README and docs, by Chromium: docs/pictures
	$(BIN)/python -m docsite.pictures

soak: $(STAMP) ## the slow tests, and new examples for every law
	HYPOTHESIS_PROFILE=soak $(PYTEST) $(IN_PARALLEL)
	$(PYTEST) -m 'soak' --timeout 1800

clean: ## remove what the commands above made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
