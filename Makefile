# make demo     a training job survives a device fault, a crash and a sick node; no Slurm, no root
# make check    lint, and all tests that need no Slurm and no process of their own: what to run while you write
# make shim     the one file that runs beside each rank, from ftslurm/wrapper/shim
# make test     all tests on Debian's own Slurm, on real clusters that they boot themselves
# make test-long   what is repetition: other releases of Slurm, an ordinary user's cluster, two hostile users
# make audit    are there advisories on requirements.lock? Part of lint and dist
# make dist     a wheel and a source package in dist/
# make docs     the site in build/docs, from docs/; make man: the manual pages in build/man
# make cluster  such a cluster for yourself; make cluster-down ends it
# make score    how many failing runs of the corpus are understood; those of public threads in two halves, apart
# make chaos    hundreds of faults of all kinds over real jobs (CHAOS_ARGS="--seed 7" repeats a run)
# make test-attacks   what two hostile users try on each other and on root's hooks; as root
# make bench    the numbers of the README, measured here
VENV ?= .venv
PYTEST_ARGS ?=
# Tests on clusters beside each other: they wait far more than they compute. Four for each core, if each has 2 GB of memory.
WORKERS ?= $(shell awk -v most=$$((4 * $$(nproc))) '/^MemTotal/ { fit = int($$2 / 2e6); print fit < 1 ? 1 : fit < most ? fit : most }' /proc/meminfo)
PYTEST = env -u MAKEFLAGS -u MFLAGS $(VENV)/bin/python -m pytest
BESIDE = -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
CHAOS_ARGS ?=
# Where a test that needed one is named (tests/conftest.py).
SECOND_TRIES = [ ! -s build/second-tries ] || { echo "=== these needed a second try:"; sort -u build/second-tries; }
QUICK = tests/policies tests/catalogs tests/model tests/stories tests/ledger tests/report tests/slurm tests/config
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo check deb rpm shim test test-live test-core test-lint test-long test-attacks audit dist docs man lint cluster cluster-down score bench chaos clean

demo: $(VENV)/.ready-demo
	demo/run $(VENV)/bin

ifneq ($(filter tests/%,$(PYTEST_ARGS)),)
test: $(VENV)/.ready-test lint
	$(PYTEST) $(BESIDE) -m "not long" $(PYTEST_ARGS)
else
# In lanes: what waits on clusters; and what computes, which gives way to it and is shown once it has ended. Jobs are an ordinary
# user's, who may not write what Python has compiled: where nobody else has, each start of each process compiles it anew.
test: $(VENV)/.ready-test
	@rm -f build/second-tries
	@$(VENV)/bin/python -m compileall -q -j 0 ftslurm
	+@$(MAKE) --no-print-directory --keep-going --jobs=3 test-live test-core test-lint; status=$$?; $(SECOND_TRIES); exit $$status
endif

test-live: $(VENV)/.ready-test
	$(PYTEST) $(BESIDE) -m "not long" $(PYTEST_ARGS) tests/live

test-core: $(VENV)/.ready-test
	@mkdir -p build
	nice -n 10 $(PYTEST) -n $$((2 * $$(nproc) + 1)) --dist loadfile -m "not long" --ignore=tests/live $(PYTEST_ARGS) >build/test-core.log 2>&1; \
	    status=$$?; cat build/test-core.log; exit $$status

test-lint: $(VENV)/.ready-test
	@mkdir -p build
	@nice -n 10 $(MAKE) --no-print-directory lint >build/test-lint.log 2>&1; status=$$?; cat build/test-lint.log; exit $$status

# The other releases run one test at a time, for twenty minutes; there is room beside them.
test-long: $(VENV)/.ready-test
	@rm -f build/second-tries
	FTSLURM_TEST_ATTACKS=1 $(PYTEST) -n 4 --dist loadgroup --no-loadscope-reorder -m long $(PYTEST_ARGS)
	FTSLURM_TEST_ATTACKS=1 FTSLURM_TEST_FORKS=1 $(PYTEST) tests/attacks/test_forks_on_slurm.py $(PYTEST_ARGS)
	@$(SECOND_TRIES)

check: $(VENV)/.ready-test lint
	$(VENV)/bin/python -m pytest -q -n auto $(QUICK) $(PYTEST_ARGS)

shim:
	tools/one-shim

# A release: not with an advisory on what root installs.
dist: $(VENV)/.ready-test audit
	tools/share $(VENV)
	$(VENV)/bin/python -m build --no-isolation --outdir dist .

deb: $(VENV)/.ready-test
	tools/share $(VENV)
	tools/package dist deb

rpm: $(VENV)/.ready-test
	tools/share $(VENV)
	tools/package dist rpm

docs: $(VENV)/.ready-test
	$(VENV)/bin/python -m sphinx -W --keep-going -q -j auto -b html -d build/doctrees docs build/docs

man: $(VENV)/.ready-test
	$(VENV)/bin/python -m sphinx -W --keep-going -q -j auto -b man -d build/doctrees docs build/man

test-attacks: $(VENV)/.ready-test
	FTSLURM_TEST_ATTACKS=1 FTSLURM_TEST_FORKS=1 $(VENV)/bin/python -m pytest tests/attacks $(PYTEST_ARGS)

lint: $(VENV)/.ready-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports --no-cache
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m vulture
	$(VENV)/bin/python tools/one-shim --check
	tools/audit $(VENV)

audit: $(VENV)/.ready-test
	tools/audit $(VENV)

cluster:
	tools/slurm-cluster up

cluster-down:
	tools/slurm-cluster down

score: $(VENV)/.ready-test
	$(VENV)/bin/python -m tests.corpus.score
	$(VENV)/bin/python -m tests.corpus.score --support

bench: $(VENV)/.ready-test
	$(VENV)/bin/python bench/run.py

chaos: $(VENV)/.ready-test
	$(VENV)/bin/python -m tests.chaos $(CHAOS_ARGS)

$(VENV)/.ready-demo: pyproject.toml tools/setup
	tools/setup demo $(VENV)

$(VENV)/.ready-test: pyproject.toml tools/setup
	tools/setup test $(VENV)

clean:
	rm -rf $(VENV) $(VENV)-* build dist *.egg-info
