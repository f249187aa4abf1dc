# Every target sets up .venv by itself; `make help` lists them.
PYTHON ?= python3
BIN := .venv/bin
KERNEL := hatch_build.py src/edgemerge/kernel/kernel.c
export OPENBLAS_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE  # the tests start many programs, and each would compile our files

.DEFAULT_GOAL := help
.PHONY: help demo test check long laws quick bench bulk layout load faults servers fuzz accuracy \
	lasting naming attack honest hostile masked noise paper docs mcu mcu-long \
	screenshots flower dist deb lock services setup clean

help:  ## list the targets
	@sed -n 's/^\([a-z -]*\):.*## /\1\t/p' Makefile | expand -t 14

demo: .venv/ready-demo  ## a server and five devices, before and after merging
	@$(BIN)/edgemerge demo

test check:  ## all that must hold: format, lint, types, tests, docs, wheel
	@scripts/check

long: .venv/ready-dev .venv-flower/ready  ## the tests that `make test` leaves out
	@.venv-flower/bin/python -m pytest -q -m long tests/flower tests/ray & \
	$(BIN)/python -m pytest -q -n 3 --dist loadgroup -m "long and not mcu_long" --ignore=tests/flower --ignore=tests/ray; \
	code=$$?; wait $$! && exit $$code

laws: .venv/ready-dev  ## 100 examples of each law, with the kernel and without it
	@$(BIN)/python -m pytest -q -n 3 --dist loadgroup -m "hypothesis and not mcu_long" --ignore=tests/flower --ignore=tests/ray
	@EDGEMERGE_KERNEL=off $(BIN)/python -m pytest -q -n 3 --dist loadgroup -m hypothesis tests/laws

quick: .venv/ready-dev  ## only the fast tests
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not slow" --hypothesis-profile=quick -p no:schemathesis \
		--ignore=tests/browser --ignore=tests/bulk --ignore=src/edgemerge/dask --ignore=tests/comparison --ignore=src/edgemerge/comparison --ignore=tests/paper --ignore=src/edgemerge/paper --ignore=tests/faults --ignore=tests/flower --ignore=tests/ray --ignore=tests/servers_many

fuzz: .venv/ready-dev  ## search for new counter-examples to the laws, for MINUTES=10
	@scripts/fuzz $(MINUTES)

bench: .venv/ready-bench  ## measure speed against other ways, in one run
	@$(BIN)/python -m benchmarks

bulk: .venv/ready-dask  ## two workers sum up 480 MB, one is killed: the same bits
	@$(BIN)/python examples/bulk/try_it.py

mcu: .venv/ready-dev  ## firmware for Cortex-M in QEMU: tests, three boards in a fleet, tables
	@scripts/services mcu
	@$(BIN)/python -m pytest -q -m "not mcu_long" tests/embedded
	@$(BIN)/python -m examples.microcontroller.try_it
	@$(BIN)/python -m benchmarks.microcontroller

mcu-long: .venv/ready-dev  ## all of HAR on emulated boards, and 10⁶ mutations: half an hour
	@scripts/services mcu
	@$(BIN)/python -m pytest -q -n 2 -m mcu_long tests/embedded

layout: .venv/ready-dev  ## count files, lines and calls of one sample, PUT and pull, and time them
	@$(BIN)/python -m benchmarks.layout

load: .venv/ready-dev  ## 100 devices push to a server over TLS for a minute
	@$(BIN)/python -m benchmarks.load

faults: .venv/ready-dev  ## kill server and agents 500 times and more, and count what was lost
	@$(BIN)/python scripts/faults.py

servers: .venv/ready-dev  ## four servers behind nginx, random kills: totals stay exact
	@$(BIN)/python -m tests.servers_many

accuracy: .venv/ready-bench  ## ROC-AUC against other detectors, clean and dirty
	@$(BIN)/python -m benchmarks.defaults
	@$(BIN)/python -m benchmarks.dirty
	@$(BIN)/python -m benchmarks.ahead

lasting: .venv/ready-dev  ## faults that last: how much of them is in alarm; promised limits
	@$(BIN)/python -m benchmarks.lasting
	@$(BIN)/python -m benchmarks.false_episodes

naming: .venv/ready-dev  ## how often a fault that other devices know gets its name
	@$(BIN)/python -m benchmarks.naming

honest: .venv/ready-dev  ## what honest fleets lose by the checks
	@$(BIN)/python -m benchmarks.honest

hostile: .venv/ready-dev  ## how long results wait while hundreds of hostile patterns are compared
	@$(BIN)/python -m benchmarks.hostile

masked: .venv/ready-dev  ## what masked sums cost: alone, with a real server, beside Flower's SecAgg+
	@$(BIN)/python -m benchmarks.masked

noise: .venv/ready-dev  ## what noise with a stated ε costs, and what it hides (HAR)
	@$(BIN)/python -m benchmarks.noise

attack: .venv/ready-dev  ## what hostile clients can do to a server, one bad device to a fleet, and sharing reveals
	@$(BIN)/python -m benchmarks.hostile_server
	@$(BIN)/python -m benchmarks.attack
	@$(BIN)/python -m benchmarks.sharing

paper: .venv/ready-paper  ## the paper's evaluation in part, some minutes
	@$(BIN)/edgemerge paper all --quick

docs: .venv/ready-dev  ## build the documentation into docs/_build/html
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

screenshots: .venv/ready-dev  ## pictures of all pages into build/, and of some into docs/
	@$(BIN)/python -m tests.browser.screenshots

flower: .venv-flower/ready  ## tests on Flower and Ray, in an environment of their own
	@.venv-flower/bin/python -m pytest -q tests/flower tests/ray

dist: .venv/ready-dist  ## sdist, wheels and bill of materials into dist/, tried on every Python here
	@$(BIN)/python scripts/build_dist.py

deb: .venv/ready-dist  ## Debian package into dist/, tried on two clean machines (as root)
	@scripts/services deb
	@$(BIN)/python scripts/try_deb.py

lock: .venv/ready-dist  ## write requirements.txt: constraints.txt for server and agent, with hashes
	@scripts/lock

services:  ## apt-get install what the tests need (PostgreSQL, nginx, ...)
	@scripts/services

setup: .venv/ready-dev  ## only set up .venv for development

clean:  ## remove what was built, and .venv
	@rm -rf .venv .venv-flower build dist docs/_build .hypothesis .import_linter_cache .mypy_cache \
		.pytest_cache .ruff_cache
	@find src tests scripts docs -name __pycache__ -prune -exec rm -rf {} +

# Some systems ship venv without its own pip; then the system's pip fills it.
.venv/bin/python .venv-flower/bin/python:
	@echo "setting up $(@D:/bin=)" >&2
	@$(PYTHON) -m venv $(@D)/.. >/dev/null 2>&1 || { \
		$(PYTHON) -m venv --clear --without-pip $(@D)/.. && \
		$(PYTHON) -m pip --python $@ install -qq pip; }

# Python compiles what it imports; to compile all that is installed takes a third of the set-up.
# Flower pins other versions than ours, so it has an environment of its own.
.venv-flower/ready: pyproject.toml constraints.txt constraints-flower.txt $(KERNEL) | .venv-flower/bin/python
	@echo "installing edgemerge[flower-tests] into .venv-flower, once" >&2
	@grep -viE "^($$(sed -n 's/==.*//p' constraints-flower.txt | paste -sd '|'))==" constraints.txt \
		| cat - constraints-flower.txt > .venv-flower/constraints.txt
	@.venv-flower/bin/python -m pip install -qq --no-compile -c .venv-flower/constraints.txt -e '.[flower-tests]'
	@touch $@

.venv/ready-%: pyproject.toml constraints.txt $(KERNEL) | .venv/bin/python
	@echo "installing edgemerge[$*] into .venv, once" >&2
	@$(BIN)/python -m pip install -qq --no-compile -c constraints.txt -e '.[$*]'
	@touch $@
