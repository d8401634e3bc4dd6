# The steps of .ci/run, one by one. `make check` is what a change should pass before it is sent.
BIN ?= .venv/bin
PYTEST = $(BIN)/python -m pytest

.PHONY: help install demo lint generate generated types golden test numerics slow fp8 kernels trackers lowest oldest cluster vllm docs site check

help: ## list the targets
	@sed -n 's/^\([a-z0-9]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

install: ## .venv with the versions of constraints.txt
	python3 launch/quickstart.py install

demo: ## corpus to sample, with fewer steps
	python3 launch/quickstart.py --steps 10

lint: ## ruff, codespell, wording of the documentation
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell
	$(BIN)/python docs/prose.py

generate: ## pages and tables that are made from the code
	$(BIN)/python docs/generate.py

generated: ## whether those are up to date
	$(BIN)/python docs/generate.py --check

types: ## mypy
	$(BIN)/mypy

golden: ## the authors' outputs
	$(BIN)/python tests/check_golden.py tests/golden/*.safetensors

test: ## tests of every change
	$(PYTEST) -n 2 --dist worksteal

numerics: ## numerical tests with the CPU's oldest instruction set
	ATEN_CPU_CAPABILITY=default $(PYTEST) -n 2 --dist worksteal -m "numerics and not slow"

slow: ## tests that take minutes
	$(PYTEST) -n 3 --dist worksteal -m slow # many of them wait

build/torchao: constraints.txt # not in .venv, where it slows every import of transformers, and prints what it cannot load
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $@ -c constraints.txt torchao
	touch $@

fp8: build/torchao ## tests of products in FP8, emulated
	PYTHONPATH=build/torchao $(PYTEST) tests/nn/test_fp8.py tests/model/test_fp8.py tests/training/startup/engine/test_working_fp8.py \
		tests/accounting/memory/test_activation_memory.py tests/lab/benchmark/gpu/test_parts.py -m fp8

build/triton: # that of the lowest torch
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $@ triton==3.6.0
	touch $@

build/fa4: constraints.txt # not in .venv: its compiler takes 300 MB. No dependencies, which .venv has, or a GPU needs
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $@ -c constraints.txt flash-attn-4 \
		nvidia-cutlass-dsl nvidia-cutlass-dsl-libs-base nvidia-cutlass-dsl-libs-core nvidia-cutlass-dsl-libs-cu13 \
		quack-kernels apache-tvm-ffi torch-c-dlpack-ext einops cuda-bindings cuda-pathfinder
	touch $@

kernels: build/triton build/fa4 ## GPU kernels compiled without a GPU: ours by the oldest Triton, and FlashAttention-4's
	PYTHONPATH=build/triton $(PYTEST) tests/kernels/test_kernels.py -m slow -k compiled
	PYTHONPATH=build/fa4:build/fa4/nvidia_cutlass_dsl/dsl_packages $(PYTEST) tests/kernels/test_fa4.py -m fa4

build/trackers: tests/trackers.txt # not in .venv, where they bring a web server and other versions of what is there
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $@ -r $<
	touch $@

trackers: build/trackers ## tests of sinks with their real packages, offline
	PYTHONPATH=build/trackers $(PYTEST) tests/training/sinks/test_trackers.py -m trackers

lowest: ## a smoke run with the lowest versions of dependencies
	PATH=$(abspath $(BIN)):$$PATH .ci/lowest

build/oldest: # what model cards promise, with the newest packages that it takes; megatape itself needs a newer transformers
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $@ \
		transformers==5.4.0 tokenizers==0.22.2 huggingface_hub==1.33.0
	touch $@

oldest: build/oldest ## exports, loaded by the oldest transformers of their model cards
	MEGATAPE_OLDEST=build/oldest $(PYTEST) tests/hf/exporting/test_exporter.py -m oldest

cluster: ## several hosts on this machine; as root, a skipped test fails
	MEGATAPE_CLUSTER_TESTS=required $(PYTEST) tests/tools/cluster

build/vllm: # nothing of it is installed or runs
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --dest $@ vllm==0.33.0

vllm: build/vllm ## compare the stand-in for vLLM with vLLM's own classes (a wheel of 340 MB)
	$(BIN)/python -m tests.helpers.vllm.compare $</*.whl

docs: ## build/site, strictly: a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

site: docs ## serve the documentation on this machine
	$(BIN)/mkdocs serve

check: lint generated types golden test docs ## before a change is sent
