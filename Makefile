# Everything is `python -m creditaudit <verb>`; make adds the set-up. Start with `make help`.

PROFILE ?= quick
VENV := .venv
PY := $(VENV)/bin/python
RUN := $(PY) -m creditaudit
export PYTHONPATH := $(CURDIR)/lib$(if $(PYTHONPATH),:$(PYTHONPATH))# a copied folder runs its own code
ONLY := $(if $(SECTION),--section "$(SECTION)") $(if $(SET),--set "$(SET)")
WHAT := --profile "$(PROFILE)" $(ONLY)
STRICTLY := $(if $(filter-out 0 no false,$(STRICT)),--strict)
HOW := $(if $(JOBS),--jobs "$(JOBS)") $(if $(DEVICE),--device "$(DEVICE)") $(if $(EXECUTOR),--executor "$(EXECUTOR)")
READY := setup $(if $(EXECUTOR),cluster)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup cluster browser biotorch data reproduce train collect notebooks appendix claims certificate verify-paper test lab bench faults clean

help:  ## show this list
	@echo "usage: make <target> [VARIABLE=value ...]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "variables: PROFILE=quick|paper|smoke  SECTION=depth_ladder  SET=d256_L4  JOBS=2  DEVICE=cuda  STRICT=1  N=3  K=certificate"
	@echo "           EXECUTOR=dask|dask://HOST:PORT  SHARD=3/8  FOLDER=records/of/another/machine"

setup: $(VENV)/.complete  ## make the Python environment (.venv) from requirements.lock

$(VENV)/.complete: requirements.lock pyproject.toml tools/setup.sh
	@bash tools/setup.sh $(VENV)

cluster: $(VENV)/.cluster  ## add what a Dask cluster needs (requirements-cluster.lock)

$(VENV)/.cluster: $(VENV)/.complete requirements-cluster.lock
	@bash tools/setup.sh $(VENV) cluster

browser: $(VENV)/.browser  ## add what the tests in a real browser need (requirements-browser.lock)

$(VENV)/.browser: $(VENV)/.complete requirements-browser.lock
	@bash tools/setup.sh $(VENV) browser

biotorch: $(VENV)/.biotorch  ## add the library of feedback alignment that the audit is tested against (requirements-biotorch.lock)

$(VENV)/.biotorch: $(VENV)/.complete requirements-biotorch.lock
	@bash tools/setup.sh $(VENV) biotorch

data: setup  ## fetch CIFAR-10 into data/ and verify it
	@$(RUN) data

reproduce: $(READY)  ## train, run the notebooks, check the claims, render the appendix
	@$(RUN) reproduce $(WHAT) $(HOW) $(STRICTLY)

train: $(READY)  ## only the training runs; finished ones are kept
	@$(RUN) train $(WHAT) $(HOW) $(if $(SHARD),--shard "$(SHARD)")

collect: setup  ## take the records that another machine made (FOLDER=)
	@$(RUN) collect "$(FOLDER)" --profile "$(PROFILE)"

notebooks: setup  ## only run the notebooks over their parameter sets
	@$(RUN) notebooks $(WHAT)

appendix: setup  ## only render the appendix (PROFILE=paper needs no training)
	@$(RUN) appendix --profile "$(PROFILE)"

claims: setup  ## print every verdict (of PROFILE; STRICT=1: fail on a contradicted claim that no finding explains)
	@$(RUN) claims --profile "$(PROFILE)" $(STRICTLY)

certificate: setup  ## compare the runs trained here with the committed ones once more (KEY=<run>: number by number)
	@$(RUN) certificate --profile "$(PROFILE)" $(if $(KEY),--run "$(KEY)")

verify-paper: setup data  ## retrain N committed runs of the paper profile and compare
	@$(RUN) verify-paper $(ONLY) $(if $(N),-n "$(N)") $(if $(JOBS),--jobs "$(JOBS)")

test: setup cluster  ## lint and test, offline (K=certificate: only the tests of that name)
	@$(MAKE) --no-print-directory browser || echo "without it the tests in a browser are skipped"
	@$(MAKE) --no-print-directory biotorch || echo "without it the audit is not tested against BioTorch"
	@$(PY) -m ruff check .
	@OMP_NUM_THREADS=1 MPLBACKEND=agg $(PY) -m pytest $(if $(K),-k "$(K)",-n auto --dist loadfile --no-loadscope-reorder)

lab: setup  ## open copies of the notebooks in JupyterLab, to play with (SECTION= SET= PROFILE=: that one's values)
	@$(RUN) lab $(ONLY) $(if $(filter file,$(origin PROFILE)),,--profile "$(PROFILE)")

bench: setup data  ## measure the training step against the usual loops
	@$(PY) -m benchmarks.bench

faults: setup cluster data  ## kill, cut and damage running campaigns, and tell what was lost
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.faults --keep

clean:  ## remove caches and all outputs but committed records and the bench; keep data and .venv
	@find outputs/quick -mindepth 1 -maxdepth 1 ! -name reference -exec rm -rf {} + 2>/dev/null || true
	@rm -rf outputs/smoke outputs/interactive outputs/worker .pytest_cache .ruff_cache .hypothesis
	@find lib tests notebooks -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
