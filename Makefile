# Two commands matter: `make demo` and `make test`. Both build .venv by themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CORE   := $(VENV)/.core
STAMP  := $(VENV)/.installed

PARTS  := commands models files docs report fuzz packaging typing trl

.PHONY: demo demo-meta quick test test-all $(PARTS:%=test-%) test-processors test-pythons test-deepspeed \
	engines coverage check docs dist audit bench clean

# torch goes first and alone: with it in place, nothing that follows asks the index for another build of it.
# The demo and the verbs need the core; the extras and what tests need come with `make test`.
# Modules are compiled when they are first imported: compiling all of them takes a minute, and most are never used.
# pip says only what went wrong; some files of other packages are not meant to compile, so that step has no say.
PIP := $(BIN)/pip install -qq --disable-pip-version-check --no-compile -c constraints.txt
$(CORE): pyproject.toml constraints.txt
	@echo "Installing vestige and torch into $(VENV) (a minute or two, about 1.5 GB) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) torch
	@( PYTHONDONTWRITEBYTECODE= $(BIN)/python -c "import torch" >/dev/null 2>&1 & ) # another core compiles it meanwhile
	@$(PIP) -e .
	@touch $(CORE)

$(STAMP): $(CORE)
	@echo "Installing what the tests need into $(VENV) (a few minutes, about 1.5 GB more) ..."
	@$(PIP) -e ".[dev]"
	@$(BIN)/python -m compileall -q -j 2 $(VENV)/lib >/dev/null 2>&1 || true
	@touch $(STAMP)

demo: $(CORE)
	$(BIN)/vestige demo
# What is compiled is kept, even where the environment says that nothing is to be.
demo: export PYTHONDONTWRITEBYTECODE =

# Pools of tiny models, both attacks, and every metric judged with them: docs/meta.md, "On the lab".
demo-meta: $(STAMP)
	$(BIN)/python bench/demo_meta.py

# One thread for each of two workers: tiny models gain nothing from more, and lose by sharing. Tests start many processes:
# they share compiled modules even where the environment says that none are to be kept.
# An environment that says otherwise (tools/processors.py does) is obeyed.
OMP_NUM_THREADS ?= 1
quick test coverage $(PARTS:%=test-%): export OMP_NUM_THREADS := $(OMP_NUM_THREADS)
quick test test-processors test-pythons coverage $(PARTS:%=test-%): export PYTHONDONTWRITEBYTECODE =
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# The contract suite (what vestige promises, tested from outside), the doctests and the fast tests: ten minutes.
test: $(STAMP)
	@$(PYTEST)

# The rest, a part at a time; tests/conftest.py lists what belongs to which part. `make -k test-all` runs on after a
# failure, for an hour and a half or longer.
$(PARTS:%=test-%): test-%: $(STAMP)
	@$(PYTEST) --part $* tests
test-all: check test $(PARTS:%=test-%) test-processors test-pythons test-deepspeed engines

# Packages that need no model, and one evaluation by the command line. Under 90 seconds on two cores.
quick: $(STAMP)
	@$(BIN)/python tools/quick.py

# What trains, and what compares bytes or texts, as other processors would run it (CONTRIBUTING.md).
test-processors: $(STAMP)
	$(BIN)/python tools/processors.py

# The packages without torch on newer Pythons, where those are installed.
test-pythons: $(STAMP)
	$(BIN)/python tools/pythons.py

# Looks at models that DeepSpeed trains (ZeRO-2 and ZeRO-3, one and two processes on a CPU). It builds against the torch in
# .venv and shares that environment; its first use compiles a few minutes.
test-deepspeed: $(STAMP)
	test -d .venv-deepspeed || $(PYTHON) -m venv .venv-deepspeed
	printf '%s\n' $(CURDIR)/$(VENV)/lib/python3*/site-packages $(CURDIR)/src > $$(echo .venv-deepspeed/lib/python3*/site-packages)/vestige.pth
	.venv-deepspeed/bin/pip install --quiet --disable-pip-version-check setuptools wheel packaging
	DS_ACCELERATOR=cpu .venv-deepspeed/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation deepspeed==0.19.8 hjson ninja py-cpuinfo msgpack einops
	DS_ACCELERATOR=cpu VESTIGE_DEEPSPEED=.venv-deepspeed/bin/python $(BIN)/python -m pytest -n 0 tests/unlearn/test_watch_processes.py -k deepspeed

# Served models against a real vLLM, in an environment of its own (.venv-engines, about 3 GB; ten minutes at most).
engines: $(STAMP)
	$(BIN)/python tools/engines.py

# Which lines of src/ the tests run: a table of what is left, and the whole in per cent.
coverage: $(STAMP)
	@$(PYTEST) --cov --cov-report=term

check: $(STAMP)
	$(BIN)/ruff check src tests bench tools docs/site
	$(BIN)/ruff format --check src tests bench tools docs/site
	$(BIN)/mypy
	$(BIN)/oxlint -c tools/oxlint.json --quiet src/vestige/report/page tests/page
	$(BIN)/python tools/page_scripts.py

docs: $(STAMP)
	$(BIN)/python docs/site/build.py site

# A wheel and a source archive in dist/, tried in an empty environment away from this directory.
dist: $(CORE)
	$(BIN)/python tools/dist.py

# Advisories come over the network. Without it nothing is audited, and the last line says so.
audit: $(STAMP)
	-$(BIN)/pip install -qq --disable-pip-version-check pip-audit
	$(BIN)/python tools/audit.py

bench: $(STAMP)
	$(BIN)/python bench/table.py

clean:
	rm -rf $(VENV) .venv-* saves lab site dist
