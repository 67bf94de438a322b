# Two commands do everything on a fresh machine: `make demo` and `make test`. Both make .venv/ first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OLDER := .venv-0516
AIPERF := .venv-aiperf
DEVICE := $(if $(shell command -v nvidia-smi 2>/dev/null),gpu,cpu)
OUT := out

.DEFAULT_GOAL := help
.PHONY: help install aiperf real-cpu real-cpu-0516 real-gpu demo test test-quick test-real test-0516 test-kernels compile-kernels browser test-long mutants check format clean

help:  ## what can be made
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(VENV)/installed  ## .venv/ with sqsim and what its tests need

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

aiperf: $(AIPERF)/installed  ## AIPerf's trace loaders, which must read sqsim's exports, into .venv-aiperf/ (0.2 GB)

LOADERS := tests/sqsim/trace/aiperf/requirements
$(AIPERF)/installed: $(LOADERS).txt $(LOADERS)-nodeps.txt
	$(PYTHON) -m venv $(AIPERF)
	$(AIPERF)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $(LOADERS).txt
	$(AIPERF)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $(LOADERS)-nodeps.txt
	touch $@

real-cpu: $(VENV)/real-cpu  ## real SGLang for a machine without a GPU into .venv/ (2.2 GB)

CPU := sqreal/cpu/requirements
$(VENV)/real-cpu: $(CPU).txt $(CPU)-common.txt $(CPU)-nodeps.txt | install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement $(CPU).txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $(CPU)-nodeps.txt
	touch $@

real-cpu-0516: $(OLDER)/installed  ## the older SGLang that the plugin serves, 0.5.16, into .venv-0516/ (2.2 GB)

# Its servers need the plugin, and nothing else of sqsim.
$(OLDER)/installed: $(CPU)-0516.txt $(CPU)-common.txt $(CPU)-0516-nodeps.txt pyproject.toml
	$(PYTHON) -m venv $(OLDER)
	$(OLDER)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $(CPU)-0516.txt
	$(OLDER)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $(CPU)-0516-nodeps.txt
	$(OLDER)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

real-gpu: $(VENV)/real-gpu  ## real SGLang for a machine with a GPU into .venv/

$(VENV)/real-gpu: pyproject.toml | install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[real]'
	touch $@

demo: install  ## the main job on FRAMES-like and real traces; ends by naming the HTML report
	$(BIN)/sqsim trace synth --profile frames --tasks 424 --seed 0 --overwrite -o $(OUT)/demo/frames-424.jsonl.zst
	$(BIN)/sqsim trace import traces/weka --overwrite -o $(OUT)/demo/weka.jsonl.zst
	$(BIN)/sqsim study reports/demo/study.yaml --output-dir $(OUT)/demo/study --overwrite
	$(BIN)/sqsim report $(OUT)/demo/study --overwrite -o $(OUT)/demo/report.html

test: test-quick test-real test-kernels  ## all tests but the long ones, those on a real SGLang and of the kernels included

test-quick: install aiperf  ## those that need no real SGLang, on all cores
	$(BIN)/python -m pytest -n auto -m 'not long and not gpu and not real and not kernels' --ignore=tests/sqkernels

# A server on a CPU keeps one core busy (OMP_NUM_THREADS=1); a GPU holds one server at a time. Files and classes stay
# together, for they share servers.
SERVERS := -n $(if $(filter gpu,$(DEVICE)),0,2) --dist=loadscope
test-real: real-$(DEVICE)  ## those on a real SGLang, two servers at a time on a CPU
	$(BIN)/python -m pytest $(SERVERS) -m 'real and not long and not gpu' --ignore=tests/sqkernels

# The tests run in .venv/, their servers in .venv-0516/.
IN_PLACE := $(addprefix tests/sqreal/test_,in_place_real.py in_place_window_real.py server_check.py)
test-0516: real-cpu real-cpu-0516  ## those of in-place eviction, and the contract, on a real SGLang 0.5.16
	SQREAL_PYTHON=$(CURDIR)/$(OLDER)/bin/python $(BIN)/python -m pytest $(SERVERS) -m 'real and not gpu' $(IN_PLACE) tests/sqreal/test_plugin_real.py::test_the_internals_are_as_tested tests/sqreal/test_policies_real.py::test_a_held_session_outlasts_pressure_and_may_be_closed

test-kernels: real-$(DEVICE) compile-kernels  ## those of the Triton kernels, without a GPU: compiled, interpreted
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -n auto -m 'kernels and not long and not gpu' tests/sqkernels

# 3.6.0 comes with torch 2.11; 3.8.0 with torch 2.14.1, which SGLang 0.5.23 asks for on a GPU. Each lies beside the one in .venv/.
TRITONS := 3.6.0 3.8.0
compile-kernels: $(TRITONS:%=$(VENV)/triton-%/installed)  ## every kernel for sm_90, and what its machine code promises
	$(foreach version,$(TRITONS),PYTHONPATH=$(VENV)/triton-$(version):kernels $(BIN)/python -m sqkernels.compile &&) true

$(VENV)/triton-%/installed: | real-$(DEVICE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target $(@D) triton==$*
	touch $@

test-long: real-$(DEVICE)  ## the long ones, those on a real SGLang and on a local Ray included
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cluster]'
	$(BIN)/python -m pytest -n auto -m 'long and not gpu and not real'
	$(BIN)/python -m pytest $(SERVERS) -m 'long and not gpu and real'
	$(if $(filter cpu,$(DEVICE)),$(MAKE) test-0516)

mutants: install  ## edits of the source, one at a time, each of which a test must notice (half an hour)
	$(BIN)/python -m tests.mutants.run

browser:  ## Debian's Chromium, in which tests open the pages (as root; without one they are skipped, and say so)
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install --yes -qq --no-install-recommends chromium; }

check: install  ## lint, format, strict types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install  ## put the code into its form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove what was made, .venv/ included
	rm -rf $(VENV) $(OLDER) $(AIPERF) $(OUT) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
