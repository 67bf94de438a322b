# Two commands do everything on a fresh machine: `make demo` and `make test`. Both make .venv/ first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT := out

.DEFAULT_GOAL := help
.PHONY: help install real-cpu demo test test-long check format clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(VENV)/installed  ## .venv/ with sqsim and what its tests need

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

real-cpu: $(VENV)/real-cpu  ## real SGLang 0.5.23 on a CPU into .venv/ (on a GPU machine: pip install '.[real]')

CPU := sqreal/cpu/requirements.txt sqreal/cpu/requirements-nodeps.txt
$(VENV)/real-cpu: $(CPU) | install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement $(word 1,$(CPU))
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $(word 2,$(CPU))
	$(BIN)/python -c "from sqreal.doctor import examine; import sys; found = examine(); print(*found.checks, found.fix, sep=chr(10)); sys.exit(not found.ok)"
	touch $@

demo: install  ## the main job on FRAMES-like and real traces; ends by naming the HTML report
	$(BIN)/sqsim trace synth --profile frames --tasks 424 --seed 0 --overwrite -o $(OUT)/demo/frames-424.jsonl.zst
	$(BIN)/sqsim trace import traces/weka --overwrite -o $(OUT)/demo/weka.jsonl.zst
	$(BIN)/sqsim study reports/demo/study.yaml --output-dir $(OUT)/demo/study --overwrite
	$(BIN)/sqsim report $(OUT)/demo/study --overwrite -o $(OUT)/demo/report.html

test: install  ## all tests but the long ones
	$(BIN)/python -m pytest -n auto -m 'not long and not gpu'

test-long: install  ## the long ones
	$(BIN)/python -m pytest -n auto -m 'long'

check: install  ## lint, format, strict types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install  ## put the code into its form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove what was made, .venv/ included
	rm -rf $(VENV) $(OUT) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
