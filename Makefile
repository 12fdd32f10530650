# Everything is `python -m creditaudit <verb>`; make adds the set-up. Start with `make help`.

PROFILE ?= quick
VENV := .venv
PY := $(VENV)/bin/python
RUN := $(PY) -m creditaudit
PLAY := outputs/interactive/notebooks
export PYTHONPATH := $(CURDIR)/lib$(if $(PYTHONPATH),:$(PYTHONPATH))# a copied folder runs its own code
ONLY := $(if $(SECTION),--section "$(SECTION)") $(if $(SET),--set "$(SET)")
WHAT := --profile "$(PROFILE)" $(ONLY)
STRICTLY := $(if $(filter-out 0 no false,$(STRICT)),--strict)
HOW := $(if $(JOBS),--jobs "$(JOBS)") $(if $(DEVICE),--device "$(DEVICE)")

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup data reproduce train notebooks appendix claims verify-paper test lab bench clean

help:  ## show this list
	@echo "usage: make <target> [VARIABLE=value ...]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "variables: PROFILE=quick|paper|smoke  SECTION=depth_ladder  SET=d256_L4  JOBS=2  DEVICE=cuda  STRICT=1  N=3"

setup: $(VENV)/.complete  ## make the Python environment (.venv) from requirements.lock

$(VENV)/.complete: requirements.lock pyproject.toml tools/setup.sh
	@bash tools/setup.sh $(VENV)

data: setup  ## fetch CIFAR-10 into data/ and verify it
	@$(RUN) data

reproduce: setup  ## train, run the notebooks, check the claims, render the appendix
	@$(RUN) reproduce $(WHAT) $(HOW) $(STRICTLY)

train: setup  ## only the training runs; finished ones are kept
	@$(RUN) train $(WHAT) $(HOW)

notebooks: setup  ## only run the notebooks over their parameter sets
	@$(RUN) notebooks $(WHAT)

appendix: setup  ## only render the appendix (PROFILE=paper needs no training)
	@$(RUN) appendix --profile "$(PROFILE)"

claims: setup  ## print every verdict (of PROFILE; STRICT=1: fail on an unexplained contradiction)
	@$(RUN) claims --profile "$(PROFILE)" $(STRICTLY)

verify-paper: setup data  ## retrain N committed runs of the paper profile and compare
	@$(RUN) verify-paper $(ONLY) $(if $(N),-n "$(N)") $(if $(JOBS),--jobs "$(JOBS)")

test: setup  ## lint and test, offline
	@$(PY) -m ruff check .
	@OMP_NUM_THREADS=1 MPLBACKEND=agg $(PY) -m pytest

lab: setup  ## open copies of the notebooks in JupyterLab, to play with
	@mkdir -p $(PLAY) && for one in notebooks/*.ipynb; do [ -e $(PLAY)/$${one##*/} ] || cp $$one $(PLAY)/; done
	@echo "copies of the notebooks are in $(PLAY): delete one and make lab again to start afresh"
	@$(PY) -m jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) $(PLAY)

bench: setup data  ## measure the training step against the usual loops
	@$(RUN) bench

clean:  ## remove caches and all outputs but the paper records and the bench; keep data and .venv
	@rm -rf outputs/quick outputs/smoke outputs/interactive .pytest_cache .ruff_cache .hypothesis
	@find lib tests notebooks -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
