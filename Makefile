# Every target sets up what it needs; a set-up machine passes through in a second.
# The locks are made from locks/*.in:
#   uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate locks/kit.in -o locks/kit.lock
#   uv pip compile --no-deps --python-version 3.11 --generate-hashes locks/engine.in -o locks/engine.lock
#   uv pip compile --universal --python-version 3.11 --generate-hashes pyproject.toml -c locks/kit.lock -o locks/node.lock
#   uv pip compile --python-version 3.12 --python-platform x86_64-manylinux_2_39 --generate-hashes locks/engine-gpu.in -o locks/engine-gpu.lock
#   npm install --package-lock-only --omit-lockfile-registry-resolved --prefix locks
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test check synth rehearse fuzz bench-router soak

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

# All templates into cdk.out, without account, CDK CLI or network. -c overrides settings.
SYNTH ?= -c turnback:name=demo -c turnback:availability_zone=us-west-2b \
	-c turnback:image.ami_id=ami-00000000000000000
synth: setup
	@$(BIN)/python -m cdk.app $(SYNTH)

# A real cdk deploy to an emulated account, and two real servers from what it leaves.
rehearse: setup
	@$(BIN)/turnback rehearse

# Random edited histories on two real servers, each answer held against a cold run's.
TURNS ?= 500
SEED ?= 1
fuzz: setup
	@$(BIN)/python -m tests.fuzz.run --turns $(TURNS) --seed $(SEED)

# The router beside vllm-router on the same mock engines, then 2,000 streams at once.
bench-router: setup
	@$(BIN)/python -m benchmarks.router
	@$(BIN)/python -m benchmarks.router.streams

# Random faults for many turns on mock engines; nothing may be lost, sent twice or left behind.
SOAK_TURNS ?= 20000
soak: setup
	@$(BIN)/python -m tests.soak.run --turns $(SOAK_TURNS) --seed $(SEED)
