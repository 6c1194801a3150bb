# Targets of deploy/, dashboards/ and tests/ops; included by the Makefile.
OPS_VENV := .venv-ops
OPS_BIN := $(OPS_VENV)/bin
.PHONY: test-ops ops-demo dashboards ops-install

ops-install: $(OPS_VENV)/.installed

# Installs what it needs on a Debian machine (as root): Prometheus, Alertmanager, Node.js packages; the
# Python tools live in a virtual environment of their own, because kubectl and matplotlib are nobody
# else's business.
$(OPS_VENV)/.installed: deploy/install-ops.sh deploy/constraints-ops.txt constraints.txt pyproject.toml
	bash deploy/install-ops.sh $(OPS_VENV)
	@touch $@

# The live proof runs alone: it compares times of two processes.
test-ops: ops-install ## rules, alerts, dashboards, manifests, and the live proof
	$(OPS_BIN)/python -m pytest -n 2 --dist load tests/ops --ignore tests/ops/test_live.py
	$(OPS_BIN)/python -m pytest tests/ops/test_live.py

ops-demo: ops-install ## an alert delivered and pictures of the dashboards, simulated engines
	$(OPS_BIN)/python -m deploy.demo out/ops-demo

dashboards: ops-install ## write dashboards/json and the monitoring overlay from the sources
	$(OPS_BIN)/python -m dashboards.generate
	$(OPS_BIN)/python deploy/kubernetes/generate.py
