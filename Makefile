# make demo     a training job survives a device fault, a crash and a sick node; no Slurm, no root
# make test     everything, on a real Slurm cluster that the tests boot themselves
# make cluster  such a cluster for yourself; make cluster-down ends it
# make score    how many failing runs of the corpus are understood; those of public threads in two halves, apart
# make chaos    hundreds of faults of all kinds over real jobs (CHAOS_ARGS="--seed 7" repeats a run)
# make test-attacks   what two hostile users try on each other and on root's hooks; as root
# make bench    the numbers of the README, measured here
VENV ?= .venv
PYTEST_ARGS ?=
# Tests beside each other: they wait far more than they compute. Two are the other releases of Slurm.
WORKERS ?= 5
CHAOS_ARGS ?=
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-attacks lint cluster cluster-down score bench chaos clean

demo: $(VENV)/.ready-demo
	demo/run $(VENV)/bin

test: $(VENV)/.ready-test lint
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder $(PYTEST_ARGS)

test-attacks: $(VENV)/.ready-test
	FTSLURM_TEST_ATTACKS=1 $(VENV)/bin/python -m pytest tests/attacks $(PYTEST_ARGS)

lint: $(VENV)/.ready-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/lint-imports --no-cache
	$(VENV)/bin/mypy
	tools/audit $(VENV)

cluster:
	tools/slurm-cluster up

cluster-down:
	tools/slurm-cluster down

score: $(VENV)/.ready-test
	$(VENV)/bin/python -m tests.corpus.score

bench: $(VENV)/.ready-test
	$(VENV)/bin/python bench/run.py

chaos: $(VENV)/.ready-test
	$(VENV)/bin/python -m tests.chaos $(CHAOS_ARGS)

$(VENV)/.ready-demo: pyproject.toml tools/setup
	tools/setup demo $(VENV)

$(VENV)/.ready-test: pyproject.toml tools/setup
	tools/setup test $(VENV)

clean:
	rm -rf $(VENV) $(VENV)-* build *.egg-info
