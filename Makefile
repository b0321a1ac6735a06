PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# For pytest: a worker a core, which take tests from each other, so that none is idle at the end; or anything else, e.g.
# make test PYTEST_ARGS="tests/ps -x"
PYTEST_ARGS ?= -n auto --dist worksteal
# The versions of Python that the package is for.
PYTHONS ?= 3.11 3.12 3.13
# The folders whose coverage `make test-all` prints.
COVERED := chief/ deploy/ ps/ src/ tf1/ worker/
# How long the demo trains.
DEMO_STEPS ?= 3000
# The tests of what is compiled, and of what calls it.
BOUNDS_TESTS := tests/tf1/ops/test_winograd.py tests/tf1/ops/test_sliding_windows.py tests/rules tests/ps/shard/test_declarations.py \
	tests/ps/store/test_push_plan.py tests/ps/store/test_sparse.py tests/wire/test_packing.py tests/wire/test_sparse_rows.py \
	tests/worker/protocol/test_row_merging.py
# How many inputs `make fuzz` gives.
FUZZ_INPUTS ?= 1000000
# How long the simulation looks for a seed that fails.
SECS ?= 60
# How long the soak makes processes and messages fail; SOAK_ARGS may have --seed, see python tests/soak --help.
SOAK_SECS ?= 120
SOAK_ARGS ?=

# The package is installed as links to these files: edits count at once, a new file after a re-install.
FILES := $(sort $(shell find src ps worker chief deploy tf1 proto \( -name '*.py' -o -name '*.pyi' \) -print))
$(shell test ! -d $(VENV) || echo "$(FILES)" | cmp -s - $(VENV)/.files || echo "$(FILES)" > $(VENV)/.files)

# Tests start hundreds of processes, each of which would compile the package anew where bytecode is not kept.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help: ## show what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

.PHONY: demo
demo: $(VENV)/.installed-examples ## train the digits job on 2 PS, a chief and 2 workers
	rm -rf runs/digits
	$(BIN)/globalstep launch --ps 2 --workers 3 examples/digits.py --steps $(DEMO_STEPS)

.PHONY: test
test: $(VENV)/.installed-test ## run the quick tests, of every folder (4 minutes)
	$(BIN)/python -m pytest --quick $(PYTEST_ARGS)

.PHONY: test-all
test-all: $(VENV)/.installed-test ## run all tests but those of `make nightly`, the quick ones first, and print what those cover (30 minutes)
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest --quick $(PYTEST_ARGS)
	$(BIN)/python -m pytest --rest --durations=30 $(PYTEST_ARGS)
	@$(BIN)/python -m coverage combine --quiet
	@echo "Lines that the quick tests run, in percent:"
	@for folder in $(COVERED); do printf "%-8s %3s\n" $$folder "$$($(BIN)/python -m coverage report --include "$$folder*" --format total)"; done

.PHONY: test-pythons
test-pythons: $(VENV)/.installed-test ## run the quick tests under PYTHONS, 3.11, 3.12 and 3.13, before a release (12 minutes)
	$(BIN)/python scripts/release/test_pythons.py $(PYTHONS)

.PHONY: test-anywhere
test-anywhere: $(VENV)/.installed-test ## run the quick tests as on other machines: processors, threads, locales, homes, orders, load (90 minutes)
	$(BIN)/python scripts/release/test_anywhere.py $(PYTEST_ARGS)

.PHONY: package
package: .venv-tools/.installed ## build sdist and wheel into dist/, and train with the wheel in clean environments of PYTHONS (4 minutes)
	.venv-tools/bin/python scripts/release/check_package.py --floor $(PYTHONS)

.PHONY: nightly
nightly: $(VENV)/.installed-test ## run what repeats with more points, seeds and inputs what test-all shows, a soak, 100 short jobs, a job under attack, and the tests ten times over, to find flaky ones
	$(BIN)/python -m pytest -q -n 2 -m full_matrix
	GLOBALSTEP_SIMULATION_SEEDS=200000 $(BIN)/python -m pytest -q -n 2 -k test_the_invariants_hold
	GLOBALSTEP_SIMULATION_SEEDS=10000 $(BIN)/python -m pytest -q -n 2 -k test_the_specification_accepts
	$(BIN)/python tests/spec
	GLOBALSTEP_FUZZ_INPUTS=1000000 $(BIN)/python -m pytest -q -n 2 --timeout 7200 -k test_no_input_crashes
	GLOBALSTEP_CRASH_POINTS=all $(BIN)/python -m pytest -q -n 2 --timeout 7200 -k crash
	$(BIN)/python tests/soak --secs 1800 --round-secs 60
	$(BIN)/python tests/integration/jobs/short_jobs.py --jobs 100
	$(BIN)/python tests/integration/security/under_attack.py
	$(BIN)/python tests/integration/security/thousand_clients.py
	GLOBALSTEP_SHORT_LIVES=1000000 $(BIN)/python -m pytest -q -n 2 --timeout 7200 -k short_lives
	for round in 1 2 3 4 5 6 7 8 9 10; do $(BIN)/python -m pytest -q -n 2 $(PYTEST_ARGS) || exit 1; done

.PHONY: simulate
simulate: $(VENV)/.installed-test ## run the simulation for SECS seconds, from a seed that nobody has tried
	$(BIN)/python tests/simulation --from $$(date +%s)0000 --secs $(SECS)

.PHONY: soak
soak: $(VENV)/.installed-test ## kill, stop, cut and lie to a cluster for SOAK_SECS seconds; values, steps and ledger must be exact
	$(BIN)/python tests/soak --secs $(SOAK_SECS) $(SOAK_ARGS)

.PHONY: fuzz
fuzz: $(VENV)/.installed-test ## give PS tasks and readers FUZZ_INPUTS inputs that nobody would write (a million: half an hour)
	$(BIN)/python tests/fuzz --keep-going --from $$(date +%s)000 --inputs $(FUZZ_INPUTS)

.PHONY: bounds
bounds: $(VENV)/.installed-test ## run the kernels' tests, and the fuzzer, with every index that a kernel uses checked (2 minutes)
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(VENV)/bounds $(BIN)/python -m pytest -q -n auto $(BOUNDS_TESTS)
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(VENV)/bounds $(BIN)/python tests/fuzz --inputs 6000

.PHONY: try-readme
try-readme: ## follow the first screen of README.md in a bare Debian root (as root, with mmdebstrap; 5 minutes)
	$(PYTHON) scripts/try_readme.py

.PHONY: lint
lint: $(VENV)/.installed-dev ## check style, types and generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/generate_proto.py --check
	$(BIN)/mypy
	$(BIN)/mypy spec

.PHONY: format
format: $(VENV)/.installed-dev ## put the code into its standard form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: proto
proto: $(VENV)/.installed-dev ## regenerate the protobuf code
	$(BIN)/python scripts/generate_proto.py

.PHONY: docs
docs: $(VENV)/.installed-docs ## build the documentation as a site: build/site/index.html
	$(BIN)/python -m sphinx -j 2 -W --keep-going --nitpicky --quiet -c docs -d build/doctrees . build/site
	$(BIN)/python scripts/check_site.py build/site

.PHONY: bench
bench: $(VENV)/.installed-bench $(VENV)/.installed-examples ## measure all workloads beside all peers that are installed (10 minutes)
	$(BIN)/python -m benchmarks.bench

.PHONY: bench-quick
bench-quick: $(VENV)/.installed-bench $(VENV)/.installed-examples ## the same, shorter and less sure (2 minutes)
	$(BIN)/python -m benchmarks.bench --quick

.PHONY: bench-peers
bench-peers: .venv-peers/.installed ## install the peers of the benchmark into an environment of their own
.venv-peers/.installed: benchmarks/peers.txt
	test -x .venv-peers/bin/python || sh scripts/make_venv.sh $(PYTHON) .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --requirement benchmarks/peers.txt
	touch $@

.PHONY: bench-compute
bench-compute: $(VENV)/.installed-bench ## measure a step's computing, forward and backward, beside TensorFlow (2 minutes)
	$(BIN)/python -m benchmarks.compute

.PHONY: bench-saving
bench-saving: $(VENV)/.installed-bench ## measure how long a save holds up training, and how fast it writes (2 minutes)
	$(BIN)/python -m benchmarks.saving

.PHONY: bench-durability
bench-durability: $(VENV)/.installed-bench ## measure what durability="log" costs (2 minutes)
	$(BIN)/python -m benchmarks.durability

.PHONY: bench-guard
bench-guard: $(VENV)/.installed-bench ## measure a PS that is too slow for 64 clients, and one whose ports are scanned, into docs/ (4 minutes)
	$(BIN)/python -m benchmarks.backpressure --publish
	$(BIN)/python -m benchmarks.hostile --publish

.PHONY: bench-options
bench-options: $(VENV)/.installed-bench $(VENV)/.installed-examples $(VENV)/.installed-torch ## measure fewer bytes on the wire, overlapping computing and communicating, and synchronous steps (15 minutes)
	$(BIN)/python -m benchmarks.compression
	$(BIN)/python -m benchmarks.overlap
	$(BIN)/python -m benchmarks.synchronous

.PHONY: lock
lock: .venv-tools/.installed ## pin what CI installs, each file by its hash (some minutes)
	.venv-tools/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-header \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	  --extra dev --output-file requirements/ci.txt pyproject.toml
	# globalstep names itself, by its extras, and has no hash.
	sed -i -e '/^# WARNING: pip install/,/^    # via globalstep (pyproject.toml)/d' -e '/ globalstep (pyproject.toml)$$/d' \
	  requirements/ci.txt
	sed -i '1i # What CI installs, each file by its hash. Made by `make lock`; do not edit.' requirements/ci.txt

.PHONY: audit-dependencies
audit-dependencies: .venv-tools/.installed ## ask whether a pinned dependency has a known vulnerability
	.venv-tools/bin/python scripts/audit_dependencies.py .venv-tools/bin/pip-audit requirements/ci.txt

.PHONY: sbom
sbom: .venv-tools/.installed ## write what the pinned dependencies are, as CycloneDX, to sbom.json
	.venv-tools/bin/cyclonedx-py requirements requirements/ci.txt --pyproject pyproject.toml --output-file sbom.json
.venv-tools/.installed: requirements/tools.txt
	test -x .venv-tools/bin/python || sh scripts/make_venv.sh $(PYTHON) .venv-tools
	.venv-tools/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements/tools.txt
	touch $@

.PHONY: clean
clean: ## remove what make has made, the runs and the virtual environment included
	rm -rf $(VENV) .venv-peers .venv-tools .venv-pythons sbom.json build dist *.egg-info runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	sh scripts/make_venv.sh $(PYTHON) $(VENV)
	@echo "$(FILES)" > $(VENV)/.files

$(VENV)/.files: $(VENV)/bin/python

.PRECIOUS: $(VENV)/bin/python $(VENV)/.files
$(VENV)/.installed-%: $(VENV)/bin/python $(VENV)/.files pyproject.toml
	@echo "Installing globalstep and what '$*' needs into $(VENV); the first time this takes a minute or two."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --config-settings editable_mode=strict --editable '.[$*]'
	touch $@
