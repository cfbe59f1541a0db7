# Two commands matter: `make demo` and `make test`. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Half a minute sooner than pip, which does it where the packages come from a place that only pip is told of.
UV_INSTALL := $(BIN)/uv pip install -q --python $(BIN)/python --compile-bytecode
# Tests start hundreds of processes: each starts a third of a second sooner from compiled bytecode, so it is
# written even where the environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=
# Tests of real processes wait for a third of their time, so two cores have room for three of them.
JOBS ?= 3
SERVERS := memcached redis-server zookeeper fio iproute2 iptables openssl chromium prometheus curl nodejs \
  postgresql etcd-server etcd-client pgbouncer

.PHONY: demo test check servers docs lock clean help

help:
	@echo "make demo    set up and run the demo (no root, no servers)"
	@echo "make test    set up and run every test (as root on Debian also installs the servers they use)"
	@echo "make check   ruff, mypy --strict, import rules"
	@echo "make docs    build the documentation into docs/_build"
	@echo "make lock    pin what bursar[all] needs, with hashes, and list it (SBOM); ARGS=--upgrade for newer ones"

demo: $(VENV)/demo.stamp
	$(BIN)/bursar demo $(ARGS)

test: $(VENV)/dev.stamp servers
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

check: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(VENV)/docs.stamp
	$(BIN)/sphinx-build -q -W --keep-going docs docs/_build

# What is listed is what was installed from the lock, so a lock that cannot be installed is not written up.
lock: $(VENV)/lock.stamp
	$(BIN)/uv pip compile -q pyproject.toml --extra all --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" -o requirements.lock $(ARGS)
	rm -rf $(VENV)/locked
	$(BIN)/uv venv -q --python $(BIN)/python $(VENV)/locked
	$(BIN)/uv pip install -q --python $(VENV)/locked --require-hashes -r requirements.lock
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
	  -o sbom.cdx.json $(VENV)/locked
	$(BIN)/python .ci/trim_sbom.py sbom.cdx.json

# The servers that some tests start for themselves. Elsewhere than on Debian as root the missing
# ones are named, and the tests that need them are skipped by name.
servers:
	@sh .ci/servers $(SERVERS)

$(VENV)/pip.stamp:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	@touch $@

$(VENV)/demo.stamp: $(VENV)/pip.stamp pyproject.toml
	@echo "setting up (once): the demo's packages into $(VENV)"
	$(BIN)/python -m pip install -q -e '.[rates,shares,dashboard]'
	@touch $@

$(VENV)/dev.stamp: $(VENV)/pip.stamp pyproject.toml
	@echo "setting up (once): everything the tests need into $(VENV)"
	$(BIN)/python -m pip install -q uv
	$(UV_INSTALL) -e '.[dev]' || $(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@ $(VENV)/demo.stamp

$(VENV)/docs.stamp: $(VENV)/pip.stamp pyproject.toml
	$(BIN)/python -m pip install -q -e '.[all,docs]'
	@touch $@

$(VENV)/lock.stamp: $(VENV)/pip.stamp pyproject.toml
	$(BIN)/python -m pip install -q -e '.[lock]'
	@touch $@

clean:
	rm -rf $(VENV) docs/_build .pytest_cache .mypy_cache .ruff_cache results
	find src -name '*.nb[ic]' -delete
