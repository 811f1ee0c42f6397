# On a machine with Python only: make demo, make test; while working: make check.
PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python
SYNTH := data/synth
RUNS := runs/demo
# Four test processes, also on two cores: many tests wait for processes that they start. Tests come in their order.
PYTEST := $(RUN) -m pytest -n 4 --dist loadgroup --no-loadscope-reorder
# Tests start hundreds of processes: each would compile the packages anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check unit lint format clean

# A stamp for each set of extras, so that a second call installs nothing.
$(VENV)/.installed-%: pyproject.toml constraints.txt
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(subst -,$(comma),$*)]"
	touch $@

comma := ,

demo: $(VENV)/.installed-demo
	$(RUN) -m nemo_asr.corpora.synth $(SYNTH)
	$(RUN) examples/asr/demo.py --corpus $(SYNTH) --work_dir $(RUNS)

# Side by side: types are checked by one process, and tests wait now and then.
test: $(VENV)/.installed-demo-dev
	$(MAKE) --no-print-directory -j 2 lint unit

# The inner loop: all but the tests that start processes or take long.
check: lint
	$(PYTEST) -q -m "not slow"

# A test that waits for processes may fail on a busy machine. What failed runs once more, alone: what fails twice, fails.
unit: $(VENV)/.installed-demo-dev
	$(PYTEST) || { test $$? -eq 1 && $(RUN) -m pytest --last-failed --last-failed-no-failures none --maxfail 3; }

lint: $(VENV)/.installed-demo-dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

format: $(VENV)/.installed-demo-dev
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

clean:
	rm -rf $(VENV) build *.egg-info
