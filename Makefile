# dray. `make` prints this help; every target does its own set-up in .venv.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
DOCS_STAMP := $(VENV)/.docs-ready
JOBS ?= 2
ARGS ?=
IMAGE := build/image/dray.tar
IMAGE_SOURCES := pyproject.toml hatch_build.py $(shell find src/dray tools/image -type f -not -name '*.pyc')

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format lint types contracts heavy attack kubernetes cluster record bench docs docs-serve pictures package image image-lock clean

help:  ## show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(STAMP)  ## make .venv with dray and its development tools

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "dray needs Python 3.11 or newer (this is $$($(PYTHON) -V)); try: make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing dray and its tools into $(VENV) ..."
	@tools/install $(BIN)/python dev
	@touch $@

demo: $(STAMP)  ## the main job: see DRA at work on simulated hardware
	@$(BIN)/dray demo --no-wait

test: $(STAMP)  ## the quick tests (no root, no network)
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not heavy and not kubernetes and not cluster" $(ARGS)

check: format-check lint types contracts changelog  ## format, lint, types, import contracts, changelog

format: $(STAMP)  ## rewrite the code in the house format
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

.PHONY: format-check
format-check: $(STAMP)
	@$(BIN)/ruff format --check .

lint: $(STAMP)
	@$(BIN)/ruff check .

types: $(STAMP)
	@$(BIN)/mypy

contracts: $(STAMP)
	@$(BIN)/lint-imports --no-cache

.PHONY: changelog
changelog: $(STAMP)
	@$(BIN)/python tools/changelog.py verify

heavy: $(STAMP)  ## long tests: crash rounds, large random worlds
	@$(BIN)/python -m pytest -m heavy

attack: $(STAMP)  ## a million hostile requests, bombs, bad clients and files against a server of its own
	@$(BIN)/python -m attack

kubernetes: $(STAMP)  ## end-to-end suite on a real kube-apiserver (built once, cached)
	@tools/peers/build
	@tools/peers/build-node helm promtool example
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "kubernetes and not heavy" $(ARGS)

cluster: $(STAMP) $(IMAGE)  ## install the chart on real kubelets with containerd, and break things (needs root; programs are built once, cached)
	@tools/peers/build-node
	@$(BIN)/python -m pytest -m cluster tests/cluster --durations=10 $(ARGS)

record: $(STAMP)  ## record upstream's answers to our own cases: make record KUBERNETES_VERSION=v1.38.0
	@$(BIN)/python tools/recorders/record.py

bench: $(STAMP)  ## measure against upstream; writes BENCHMARKS.md
	@$(BIN)/python -m bench

$(DOCS_STAMP): $(STAMP)
	@tools/install $(BIN)/python docs
	@touch $@

docs: $(DOCS_STAMP)  ## build the documentation site into build/site; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "build/site/index.html"

docs-serve: $(DOCS_STAMP)  ## show the documentation at http://127.0.0.1:8000 while you write
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

pictures: $(STAMP)  ## make the pictures of the documentation from a real session (needs kubectl and chromium)
	@$(BIN)/python tools/pictures.py

package: $(STAMP)  ## build the sdist and the wheel into dist/
	@rm -rf dist
	@$(BIN)/python -m uv build --quiet || { $(BIN)/python -m pip install --quiet build && $(BIN)/python -m build; }
	@ls -l dist

image: $(IMAGE)  ## build the container image into build/image (no daemon, no registry; needs apt and dpkg)

$(IMAGE): $(STAMP) $(IMAGE_SOURCES)
	@$(BIN)/python tools/image build build/image

image-lock: $(STAMP)  ## pin the newest Python packages for the image
	@{ echo "# The Python packages of the image, pinned with checksums. Renew with: make image-lock"; \
	  $(BIN)/python -m uv pip compile pyproject.toml --extra nvidia --extra network --generate-hashes --upgrade \
	  --python-version 3.11 --python-platform linux --no-header --quiet; } > tools/image/requirements.lock.new
	@mv tools/image/requirements.lock.new tools/image/requirements.lock

clean:  ## remove what was built
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .hypothesis
