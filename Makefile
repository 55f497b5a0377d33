# Every target sets up what it needs; a set-up machine passes through in a second.
# The locks are made from locks/*.in:
#   uv pip compile --universal --python-version 3.11 --generate-hashes locks/kit.in -o locks/kit.lock
#   uv pip compile --no-deps --python-version 3.11 --generate-hashes locks/engine.in -o locks/engine.lock
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test check fuzz

setup:
	@$(PYTHON) -m runtime.local.environments

demo: setup
	@$(BIN)/turnback demo

# Everything CI runs; prints minutes per room.
test: setup
	@$(BIN)/python -m tests.run_all

# Lint, types, imports and the tests that start no engine.
check: setup
	@$(BIN)/python -m tests.run_all --fast

# Random edited histories on two real servers, each answer held against a cold run's.
TURNS ?= 500
SEED ?= 1
fuzz: setup
	@$(BIN)/python -m tests.fuzz.run --turns $(TURNS) --seed $(SEED)
