# Senbazuru. `make demo` and `make test` do all the set-up that they need; both may be run again.
SHELL := /bin/bash
VENV ?= .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/ready
SEED ?= 1
# Processes that run tests next to each other; a process may take 4 GB.
JOBS ?= 2
# Seeds of `make sweep`: how many, and the first.
SEEDS ?= 10
FIRST ?= 2
# Options of pytest for test and test-all, and the folders of test-all: all if none.
OPTIONS ?=
ROOMS ?=
# WAVE=1: simulations write FST files for a waveform viewer, and print where.
WAVE ?=
export TB_WAVE := $(WAVE)
# PAGE=1: the target rewrites the tables of its page too. Without it the page stays as it is.
PAGE ?=
PAGE_OPTION := $(if $(PAGE),--page)
# `make talk`: what the model goes on with. ARGS: options of senbazuru.talk, senbazuru.serve or sim.explore. The shell reads PROMPT as it is.
export PROMPT
ARGS ?=
# Options of golden.llm.eval.accuracy in the place of the standard ones, such as --tokens 4096.
ACCURACY ?=

.PHONY: demo layer talk serve explore kv million vq qet test test-all tests tb sweep soak formal mutate lint bench area timing placed power events synth-diff accuracy build-report docs site clean help

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

$(READY): pyproject.toml constraints.txt .ci/setup
	@.ci/setup $(VENV)

demo: $(READY)  ## run q_proj and down_proj of SmolLM2-135M on the Verilated lane
	@$(PYTHON) -m senbazuru.runs.demo

layer: $(READY)  ## run a decoder layer of SmolLM2-135M on the Verilated accelerator
	@$(PYTHON) -m senbazuru.runs.layer

talk: $(READY)  ## a language model talks on the Verilated accelerator: PROMPT="..." ARGS="--tokens 8 --check"
	@$(PYTHON) -m senbazuru.talk $(if $(filter command environment,$(origin PROMPT)),--prompt "$$PROMPT",) $(ARGS) $(PAGE_OPTION)

serve: $(READY)  ## an OpenAI-compatible endpoint before the Verilated accelerator: ARGS="--port 8000 --layers 2"
	@$(PYTHON) -m senbazuru.serve $(ARGS)

explore: $(READY)  ## chips and schemes for a model, as a table and a page: ARGS="--model llama-2-7b"
	@$(PYTHON) -m sim.explore $(or $(ARGS),--model smollm2-135m)

kv: $(READY)  ## store K and V of SmolLM2-135M in the Verilated KV cache and read them back
	@$(PYTHON) -m senbazuru.runs.real

million: $(READY)  ## attend over codes of K and V of SmolLM2-135M in the Verilated million_attention
	@$(PYTHON) -m senbazuru.runs.million

vq: $(READY)  ## run a vector-quantized layer of SmolLM2-135M in VQ-LLM's Verilated engines
	@$(PYTHON) -m senbazuru.runs.vq $(PAGE_OPTION)

qet: $(READY)  ## encode, decode and multiply matrices of SmolLM2-135M in the Verilated blocks of QET
	@$(PYTHON) -m senbazuru.runs.qet $(PAGE_OPTION)

test: $(READY)  ## all tests, each bench at the cases that tell most; JOBS=2
	@$(PYTHON) -m pytest -n $(JOBS) --dist worksteal --seed $(SEED) $(OPTIONS)

test-all: $(READY)  ## all tests at every case; ROOMS="tb/kllm tb/oaken": those of some rooms
	@$(PYTHON) -m pytest -n $(JOBS) --dist worksteal --seed $(SEED) --all-cases $(OPTIONS) $(ROOMS)

tests: $(READY)  ## the tests that need no Verilog
	@$(PYTHON) -m pytest -n $(JOBS) --dist worksteal --seed $(SEED) tests

tb: $(READY)  ## every block's Verilog: co-simulation, lint, netlist, page
	@$(PYTHON) -m pytest -n $(JOBS) --dist worksteal --seed $(SEED) tb senbazuru

sweep: $(READY)  ## every bench at SEEDS=10 fresh seeds from FIRST=2; resumes; a table of failures
	@$(PYTHON) -m tb.sweep --seeds $(SEEDS) --first $(FIRST)

soak: $(READY)  ## a million random requests to Oaken's memory management unit
	@$(PYTHON) -m senbazuru.runs.soak --seed $(SEED) $(PAGE_OPTION)

formal: $(READY)  ## proofs of the stream blocks, of the swap networks and of the page table
	@$(PYTHON) -m tb.formal

mutate: $(READY)  ## inject faults into every block and count those that its testbench finds
	@$(PYTHON) -m tb.faults.mutate $(PAGE_OPTION)

bench: $(READY)  ## cycles of the lane next to its bound, simulation and emission speed
	@$(PYTHON) -m senbazuru.runs.lane_rates $(PAGE_OPTION)

area: $(READY)  ## areas next to the papers' tables
	@$(PYTHON) -m synth.compare kllm $(PAGE_OPTION)
	@$(PYTHON) -m synth.compare select $(PAGE_OPTION)
	@$(PYTHON) -m synth.compare rivals $(PAGE_OPTION)
	@$(PYTHON) -m synth.compare chip $(PAGE_OPTION)
	@$(PYTHON) -m synth.compare oaken $(PAGE_OPTION)

timing: $(READY)  ## frequencies in libraries with delays: LIBERTY="NAME=FILE[,FILE...] ..."
	@$(PYTHON) -m synth.tables.timing $(foreach set,$(LIBERTY),--set $(set)) $(PAGE_OPTION)

placed: $(READY)  ## frequencies with wires, of placed blocks: LIBERTY="NAME=FILE[,FILE...] ..."
	@$(PYTHON) -m synth.tables.placed $(foreach set,$(LIBERTY),--set $(set)) $(PAGE_OPTION)

power: $(READY)  ## energy per MAC of lanes in libraries with power tables: LIBERTY="NAME=FILE[,FILE...] ..."
	@$(PYTHON) -m senbazuru.runs.lane_power $(foreach set,$(LIBERTY),--set $(set)) $(PAGE_OPTION)

events: $(READY)  ## energy of each event of the simulator, what is missing: LIBERTY="NAME=FILE[,FILE...] ..." COMMIT=...
	@$(PYTHON) -m senbazuru.runs.event_power $(foreach set,$(LIBERTY),--set $(set)) \
		$(if $(COMMIT),--write $(COMMIT)) $(PAGE_OPTION)

synth-diff: $(READY)  ## areas and depths that differ from synth/baselines; ALL=1: the large blocks too
	@$(PYTHON) -m synth.baseline $(if $(ALL),--all)

accuracy: $(READY)  ## perplexity of every method; C4=FILE WIKITEXT2=FILE
	@$(PYTHON) -m golden.llm.eval.accuracy $(if $(C4),--text "C4=$(C4)") \
		$(if $(WIKITEXT2),--text "WikiText-2=$(WIKITEXT2)") \
		$(or $(ACCURACY),--tokens 20480 --seq 2048 --seeds 3 --sweep-tokens 4096) $(PAGE_OPTION)

build-report: $(READY)  ## time, memory and size of every block's Verilog, and its lint
	@$(PYTHON) -m senbazuru.runs.build_report $(PAGE_OPTION)

docs: $(READY)  ## fill the generated tables of docs/blocks
	@$(PYTHON) -m hdl.pages

site: $(READY)  ## docs as a site in build/site; a broken link or a page without a place fails
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build

lint: $(READY)  ## ruff and mypy
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy

clean:  ## what the tools have built, not the environment
	rm -rf build
