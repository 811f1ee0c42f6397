# Two commands do everything on a machine with Python only: make demo, make test.
PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python
SYNTH := data/synth
RUNS := runs/demo

.PHONY: demo test unit lint format clean

# A stamp for each set of extras, so that a second call installs nothing.
$(VENV)/.installed-%: pyproject.toml constraints.txt
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(subst -,$(comma),$*)]"
	touch $@

comma := ,

demo: $(VENV)/.installed-demo
	$(RUN) -m nemo_asr.corpora.synth $(SYNTH)
	$(RUN) examples/asr/demo.py --corpus $(SYNTH) --work_dir $(RUNS)

test: lint unit

unit: $(VENV)/.installed-demo-dev
	$(RUN) -m pytest

lint: $(VENV)/.installed-demo-dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

format: $(VENV)/.installed-demo-dev
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

clean:
	rm -rf $(VENV) build *.egg-info
