# On a machine with Python only: make demo, make test; while working: make check; before a release: make ci, make pythons.
PYTHON ?= python3
# make pythons tries these, with the tested versions and with the newest ones.
PYTHONS ?= 3.11 3.12 3.13
CONSTRAINTS ?= -c constraints.txt
VENV ?= .venv
RUN := $(VENV)/bin/python
SYNTH := data/synth
RUNS := runs/demo
# Four test processes, also on two cores: many tests wait for processes that they start. Tests come in their order.
PYTEST := $(RUN) -m pytest -n 4 --dist loadgroup --no-loadscope-reorder
# Tests start hundreds of processes: each would compile the packages anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo pictures wheels site test long golden ci gpu check fast unit lint format pythons imports release-check clean

# A stamp for each set of extras, so that a second call installs nothing.
$(VENV)/.installed-%: pyproject.toml constraints.txt
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e ".[$(subst -,$(comma),$*)]"
	touch $@

comma := ,

demo: $(VENV)/.installed-demo
	$(RUN) -m nemo_asr.corpora.synth $(SYNTH)
	$(RUN) examples/asr/demo.py --corpus $(SYNTH) --work_dir $(RUNS)

# The picture of the server's page in README.md, with the run and the recording of make demo; Chromium draws it.
pictures: SHOWN := $(RUNS) $(RUNS)/new.wav
pictures: $(VENV)/.installed-demo-dev
	$(RUN) tools/pictures.py $(SHOWN)

# nemo-lite, and nemo-lite-run, which recognises without PyTorch.
wheels: $(VENV)/.installed-dev
	$(RUN) tools/wheels.py dist

# The pages as a site in build/site, one for each language; a warning, such as a link that leads nowhere, is an error.
site: $(VENV)/.installed-docs
	for language in en zh; do \
	  $(RUN) -m sphinx -W --keep-going -q -t $$language -c docs -d build/site_read/$$language . build/site/$$language || exit 1; \
	done
	cp docs/site/index.html build/site

# Side by side: types are checked by one process, and tests wait now and then.
test: $(VENV)/.installed-demo-dev
	$(MAKE) --no-print-directory -j 2 lint unit

# Losses, rates, transcripts, plans, saved tensors and error texts of a few runs are those that were recorded.
golden: $(VENV)/.installed-demo-dev
	$(RUN) benchmarks/golden.py small

# CI: .ci/run and .github/workflows/test.yml run this target. One after the other: each of them uses all cores.
ci:
	$(MAKE) --no-print-directory golden
	$(MAKE) --no-print-directory site
	$(MAKE) --no-print-directory test
	$(MAKE) --no-print-directory long

# On a machine with a GPU: what is right first, then how fast it is. Nothing is installed: a torch that is there (from 2.11
# on) stays, and packages may lie in a folder on PYTHONPATH.
gpu: GPU_PYTHON ?= $(if $(wildcard $(RUN)),$(RUN),$(PYTHON))
gpu:
	PYTHONPATH="$(CURDIR):$(CURDIR)/collections/asr:$$PYTHONPATH" $(GPU_PYTHON) benchmarks/gpu.py --json gpu.json $(GPU_OPTIONS)

# The inner loop: all but the tests that start processes or take long. Types are checked beside them.
check: $(VENV)/.installed-demo-dev
	$(MAKE) --no-print-directory -j 2 lint fast

# In a clean checkout one process compiles the tests first: each of the test processes would do so, which takes 20 s.
tests/__pycache__: | $(VENV)/.installed-demo-dev
	$(RUN) -m pytest --collect-only -q > /dev/null || true

# Two processes: these tests do not wait, and each process first imports the files of all tests, which takes 10 s.
fast: $(VENV)/.installed-demo-dev | tests/__pycache__
	$(PYTEST) -n 2 -q -m "not slow"

# A test that waits for processes may fail on a busy machine. What failed runs once more, alone: what fails twice, fails.
# long is what make test leaves out: further cases, and what guards code that changes rarely. The fault suite has -m soak.
unit long: $(VENV)/.installed-demo-dev | tests/__pycache__
	$(PYTEST) -m "$(TESTS)" || \
	  { test $$? -eq 1 && $(RUN) -m pytest -m "$(TESTS)" --last-failed --last-failed-no-failures none --maxfail 3; }

unit: TESTS :=
long: TESTS := long

lint: $(VENV)/.installed-demo-dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

format: $(VENV)/.installed-demo-dev
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

# pyenv's commands start only the versions that are switched on: switch on all that are here.
pythons imports release-check: export PYENV_VERSION := $(shell pyenv versions --bare 2> /dev/null | grep -E '^3\.[0-9]+\.[0-9]+$$' | paste -sd:)

# The fast tests under each Python that is here. An environment takes up to 6 GB and is removed after its tests.
pythons:
	@for python in $(PYTHONS); do for versions in tested newest; do \
	  if ! python$$python -c "" 2> /dev/null; then echo "Python $$python: not found, skipped"; break; fi; \
	  echo "Python $$python, $$versions versions"; \
	  $(MAKE) --no-print-directory fast PYTHON=python$$python VENV=.venvs/$$python-$$versions \
	    CONSTRAINTS="$$(test $$versions = newest || echo -c constraints.txt)" && rm -rf .venvs/$$python-$$versions || exit 1; \
	done; done

# Before a release: wheel and source archive, installed elsewhere with the newest of everything, under each Python.
release-check: PYTHONS := 3.11 3.12 3.13 3.14
release-check: $(VENV)/.installed-demo-dev
	$(RUN) tools/release_check.py $(PYTHONS)

# The shortest form of it: install without extras, import, and start the command.
imports:
	@for python in $(PYTHONS); do \
	  if ! python$$python -c "" 2> /dev/null; then echo "Python $$python: not found, skipped"; continue; fi; \
	  python$$python -m venv .venvs/$$python-import && \
	  .venvs/$$python-import/bin/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e . && \
	  .venvs/$$python-import/bin/python -c "import nemo_lite, nemo_asr" && \
	  .venvs/$$python-import/bin/nemo-lite --help > /dev/null && \
	  echo "Python $$python: import and command work" && rm -rf .venvs/$$python-import || exit 1; \
	done

clean:
	rm -rf $(VENV) .venvs build *.egg-info
