# Two commands are enough: `make train` trains the tiny agent, `make test` passes the tests. Both set up .venv themselves.
PYTHON ?= python3
BIN := .venv/bin
# Two workers for what needs a heavy real part, and a third that fills the time in which they wait: tests/suite/schedule.py.
PYTEST := $(BIN)/pytest --numprocesses 3
COVERAGE := --rcfile=tests/suite/coverage.ini

.PHONY: train test nightly check lint quick times stress coverage planted installed uv clients clients-all adapters engines docs gpu format clean

train: .venv/trainable
	$(BIN)/agentrl train env=calculator

test: installed
	$(PYTEST) -m "not nightly and not hub"

# All of the suite: also the dear tests for which a cheaper one stands in above (tests/suite/nightly.py).
nightly: installed
	$(PYTEST)

# Linters and the tests that start no process, in under two minutes; they share the two cores.
check: .venv/installed
	$(MAKE) --jobs 2 --output-sync lint quick

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

quick: .venv/installed
	$(BIN)/pytest --forks 2 -m "not slow and not hub"

# What each test and fixture takes, in tables: tests/suite/times.py.
times: installed
	rm -rf .times
	-$(PYTEST) --times=.times
	$(BIN)/python -m tests.suite.times .times

# One more run of the suite beside six busy processes; a run that was stopped goes on: tests/suite/stress.py.
stress: installed
	$(BIN)/python -m tests.suite.stress .stress $(STRESS)

# Branch coverage of the package by folder, in per cent. Processes that are killed leave no record.
coverage: installed
	$(BIN)/pip install --quiet 'coverage>=7.10'
	rm -rf .coverage && mkdir .coverage
	-$(BIN)/coverage run $(COVERAGE) -m pytest --numprocesses 3
	$(BIN)/coverage combine --quiet $(COVERAGE)
	@for folder in agentrl/[a-z]*/ agentrl/; do \
		printf '%6s  %s\n' "$$($(BIN)/coverage report $(COVERAGE) --include="$$folder*" --format=total)" "$$folder"; \
	done

# The environments of all tests but those of SGLang and vLLM; `make --jobs 3 installed` makes them side by side.
installed: .venv/installed clients adapters .venv-verl/installed .venv-trl-functions/installed .venv-peft/installed .venv-tinker/installed

# What makes the side environments, found or installed before several of them are made at once.
uv: .venv/installed
	@bash -c '. tests/engines_env/uv.sh && find_uv'

# Plant each fault of tests/planted/ in a copy of the package, and see that the test which exists for it finds it.
planted: .venv/installed
	$(BIN)/python -m tests.planted

# Other people's clients pin other versions of the OpenAI SDK than ours: they live in an environment of their own.
clients: .venv-clients/installed uv
	tests/sessions/gateway/clients/install.sh

# Every client that the gateway is tried with (about 4 GB), and their tests.
clients-all: .venv/installed .venv-clients/installed
	tests/sessions/gateway/clients/install.sh all
	$(BIN)/pytest $(addprefix tests/sessions/gateway/test_,clients.py coding_agents.py trained_clients.py)

.venv-clients/installed: tests/sessions/gateway/clients/requirements.txt
	test -x .venv-clients/bin/python || $(PYTHON) -m venv .venv-clients
	.venv-clients/bin/pip install --quiet --requirement $<
	touch $@

# The libraries that adapters are tried with, of the versions that go together (700 MB, in seconds).
adapters: .venv/installed uv
	tests/envs/adapters/install.sh

# verl's functions, which ours are compared with: its package alone, beside .venv's torch (25 MB).
.venv-verl/installed: tests/train/verl/requirements.txt | .venv/installed
	rm -rf .venv-verl
	$(BIN)/pip install --quiet --no-deps --target .venv-verl --requirement $<
	touch $@

# TRL's trainers, whose losses and advantages ours are compared with, in the same way (100 MB).
.venv-trl-functions/installed: tests/train/trl/requirements.txt | .venv/installed
	rm -rf .venv-trl-functions
	$(BIN)/pip install --quiet --no-deps --target .venv-trl-functions --requirement $<
	touch $@

# PEFT, which has to load the adapters that runs write.
.venv-peft/installed: tests/train/lora/requirements.txt | .venv/installed
	rm -rf .venv-peft
	$(BIN)/pip install --quiet --no-deps --target .venv-peft --requirement $<
	touch $@

# The public SDK of the training server's wire, which wants other versions of some packages.
.venv-tinker/installed: tests/train/server/requirements.txt | .venv/installed
	rm -rf .venv-tinker
	$(BIN)/python -m venv .venv-tinker
	.venv-tinker/bin/pip install --quiet --requirement $<
	.venv-tinker/bin/pip install --quiet --no-deps tinker-cookbook==0.6.1
	touch $@

# SGLang and vLLM, for the tests that drive the real servers (about 13 GB); without them those tests are skipped.
engines: .venv/installed uv
	tests/engines_env/install.sh

# The documentation as a site, in build/site; open build/site/index.html.
docs: .venv/installed .venv-site/installed
	NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --quiet

.venv-site/installed: tests/docs/requirements.txt
	rm -rf .venv-site
	$(PYTHON) -m venv .venv-site
	.venv-site/bin/pip install --quiet --requirement $<
	touch $@

# What only an NVIDIA GPU can show, in under nine minutes: with .venv where it is there, else with this machine's Python.
gpu:
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m benchmarks.gpu $(GPU)

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What `make train` needs, and `agentrl view` after it; the tests' packages take half as long again.
.venv/trainable: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "agentrl needs Python 3.11 or newer: make PYTHON=python3.11 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[train,gateway]'
	touch $@

.venv/installed: .venv/trainable
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-clients* .venv-adapters* .venv-sglang .venv-vllm .venv-uv .venv-site .venv-trl-functions .venv-peft .venv-tinker .venv-verl .venv-router .mypy_cache .ruff_cache .pytest_cache .times .stress .coverage .hypothesis build *.egg-info
