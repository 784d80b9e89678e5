# Two commands are enough: `make train` trains the tiny agent, `make test` passes the tests. Both set up .venv themselves.
PYTHON ?= python3
BIN := .venv/bin
# Two workers; tests/conftest.py says what they take as a whole, most tests first.
PYTEST := $(BIN)/pytest --numprocesses 2

.PHONY: train test check planted clients clients-all adapters engines gpu format clean

train: .venv/installed
	$(BIN)/agentrl train env=calculator

test: .venv/installed clients adapters .venv-verl/installed .venv-trl-functions/installed
	$(PYTEST)

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -m "not slow and not hub"

# Plant each fault of tests/planted/ in a copy of the package, and see that the test which exists for it finds it.
planted: .venv/installed
	$(BIN)/python -m tests.planted

# Other people's clients pin other versions of the OpenAI SDK than ours: they live in an environment of their own.
clients: .venv-clients/installed
	tests/sessions/gateway/clients/install.sh

# Every client that the gateway is tried with (about 3 GB), and their tests.
clients-all: .venv/installed .venv-clients/installed
	tests/sessions/gateway/clients/install.sh all
	$(BIN)/pytest tests/sessions/gateway/test_clients.py tests/sessions/gateway/test_coding_agents.py

.venv-clients/installed: tests/sessions/gateway/clients/requirements.txt
	test -x .venv-clients/bin/python || $(PYTHON) -m venv .venv-clients
	.venv-clients/bin/pip install --quiet --requirement $<
	touch $@

# The libraries that adapters are tried with, of the versions that go together (700 MB, in seconds).
adapters: .venv/installed
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

# SGLang and vLLM, for the tests that drive the real servers (about 13 GB); without them those tests are skipped.
engines: .venv/installed
	tests/engines_env/install.sh

# What only an NVIDIA GPU can show, in under nine minutes: with .venv where it is there, else with this machine's Python.
gpu:
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m benchmarks.gpu $(GPU)

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-clients* .venv-adapters* .venv-sglang .venv-vllm .venv-uv .venv-trl .venv-trl-functions .venv-verl .venv-router .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
