PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal

# With this variable, which some containers set, every process would compile the source of torch again: 10 s each.
unexport PYTHONDONTWRITEBYTECODE

# Tests write and delete thousands of files, and some disks make each deletion wait: in memory, if there are 2 GB for them.
ifneq ($(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 2000000'),)
test test-all test-cpus: export TMPDIR := /dev/shm
endif

.DEFAULT_GOAL := help
.PHONY: help run test test-all test-cpus fuzz check docs bench clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'

run: .venv/.run ## amgc run: handwritten digits, class after class; ARGS="cifar100-small" runs another preset
	@$(BIN)/amgc run $(ARGS)
	@$(if $(ARGS),,echo && echo "The same without training anything, amgc run fast-digits:" && $(BIN)/amgc run fast-digits --quiet)

test: .venv/.dev ## tests and doctests but the slow ones, four minutes; ARGS="-k merge" chooses some
	@$(PYTEST) -m "not slow" $(ARGS)

test-all: .venv/.dev ## all tests and doctests, the slow ones first
	@$(PYTEST) $(ARGS)

test-cpus: .venv/.dev ## tests of numbers again, with the kernels of eleven other CPUs; CPUS=3: of three
	@.ci/cpus $(CPUS)

fuzz: .venv/.dev ## 1,000 damaged files and 100 kills of each command; ARGS="--seed 1" damages others
	@OMP_NUM_THREADS=1 $(BIN)/python tests/faults/fuzz.py $(ARGS)

check: .venv/.dev ## style, format, types, direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy src
	@$(BIN)/lint-imports --no-logo

docs: .venv/.dev ## the documentation as a website, build/site/index.html; warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet $(ARGS)
	@echo "build/site/index.html"

bench: .venv/.dev ## every benchmark in turn (slow), then the pages; keep the machine otherwise idle
	@for script in benchmarks/*.py; do \
	  case "$${script##*/}" in _*|results.py|'*.py') continue;; esac; \
	  echo "== $$script"; \
	  $(BIN)/python "$$script" || exit 1; \
	done
	@$(BIN)/python benchmarks/results.py

clean: ## remove caches and build products; .venv stays
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name .venv -prune -o -name .git -prune -o -name __pycache__ -type d -print | while read -r d; do rm -rf "$$d"; done

# Two sets of packages: .run is what amgc needs, and the weights for photographs, half a minute; .dev adds what tests and checks
# need. The file of that name is written last, so a set-up that was interrupted is never believed; .unfinished then makes the next
# one start from nothing. A set-up that ended, well or badly, is updated in place. Torch goes first, to get the wheel of constraints.txt before anything
# else asks for it. Nothing is byte-compiled in advance: Python does that for what it imports.
PIP = $(BIN)/python -m pip install -q --no-compile -c constraints.txt

.venv/.run: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "amgc needs Python 3.10 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo not there)." \
	       "Choose another with: make PYTHON=python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments: its venv module is missing." \
	       "Install it (on Debian and Ubuntu the package python3-venv) and try again." >&2; exit 1; }
	@echo "Setting up .venv (once, about half a minute) ..."
	@$(call set_up,$@,$(PYTHON) -m venv .venv && $(PIP) torch && $(PIP) -e ".[photos]")

.venv/.dev: .venv/.run
	@echo "Adding what tests and checks need (once, about a minute) ..."
	@$(call set_up,$@,$(PIP) -e ".[dev]")

define set_up
trap 'exit 130' INT TERM HUP; \
	if [ -e .venv/.unfinished ]; then rm -rf .venv; \
	  [ "$1" = .venv/.run ] || { $(MAKE) --no-print-directory .venv/.run || exit 1; }; fi; \
	mkdir -p .venv && rm -f $1 && touch .venv/.unfinished || exit 1; \
	export PIP_DISABLE_PIP_VERSION_CHECK=1; \
	{ $2; } >.venv/install.log 2>&1 || { \
	  cat .venv/install.log >&2; rm -f .venv/.unfinished; \
	  echo "Setting up .venv failed; the log above is kept in .venv/install.log." >&2; exit 1; }; \
	rm -f .venv/.unfinished && touch $1
endef
