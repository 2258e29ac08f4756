# Everything that a developer or CI runs. Each target creates .venv if it does not exist.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The tests that `make test` and `make test-all` run.
T ?= tests
PARALLEL := -n 4 --dist worksteal
# Tests start thousands of Python processes; without bytecode each would compile the package again, in 0.3 s.
EXPORTS := MPLBACKEND=Agg PYTHONDONTWRITEBYTECODE=
RECIPES := stampede2-64n-72ep stampede2-448n-90ep tf-256n-90ep digits-local digits-cyclic
# Their files are not committed.
OTHERS := tf-256n-8k-90ep tf-digits-local

.PHONY: install install-tensorflow demo demo-tensorflow test test-all fuzz test-cluster test-tensorflow check proto generate house zoo pictures bench clean help

## install: create only the environment, .venv, with all commands
install: $(STAMP)

## install-tensorflow: create .venv-tf, with TensorFlow, and Horovod built for this machine's MPI; needs Python 3.11
install-tensorflow:
	@bash install-tensorflow.sh

## demo: train the five-phase chain on scikit-learn's digits under mpiexec.hydra
demo: $(STAMP)
	$(BIN)/caffe-recipes run digits-local

## demo-tensorflow: train the TensorFlow and Horovod run on the same digits, two ranks under mpiexec.hydra
demo-tensorflow: $(STAMP) install-tensorflow
	$(BIN)/caffe-recipes run tf-digits-local

## test: run the tests that take seconds, and the examples in docstrings; T=tests/caffe runs a part
test: $(STAMP)
	$(EXPORTS) $(BIN)/python -m pytest $(PARALLEL) $(T)

## test-all: run also the slow tests: long trainings, and runs that are killed; T=tests/caffe runs a part
test-all: $(STAMP)
	$(EXPORTS) $(BIN)/python -m pytest $(PARALLEL) -m "not cluster and not tensorflow" $(T)

## fuzz: read a million damaged files, which takes hours; make test reads a thousand
fuzz: $(STAMP)
	$(EXPORTS) FUZZ_SCALE=1000 $(BIN)/python -m pytest $(PARALLEL) --timeout=0 -o faulthandler_timeout=0 tests/fuzz

## test-cluster: run the tests on several hosts, which are network namespaces of this machine; needs root
test-cluster: $(STAMP)
	bash tests/cluster/install.sh
	$(EXPORTS) $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder -m cluster tests/cluster

## test-tensorflow: test the programs in tensorflow_programs/, in .venv-tf
test-tensorflow: $(STAMP) install-tensorflow
	$(EXPORTS) $(BIN)/python -m pytest -n 2 --dist worksteal -m tensorflow tests/tensorflow_programs

## check: check style and types, that the committed files are what the recipes generate, and lint the recipes
check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/caffe-recipes generate --check $(RECIPES)
	$(BIN)/caffe-recipes fmt --check prototxt
	$(BIN)/caffe-recipes lint $(RECIPES) tf-256n-8k-90ep
	made=$$(mktemp -d) && trap 'rm -r "$$made"' EXIT && $(BIN)/caffe-recipes generate $(OTHERS) --out "$$made"

## proto: compile caffe.proto into the descriptor set and the type stub beside it
proto: $(STAMP)
	$(BIN)/python caffe_recipes/caffe/compile_proto.py

## generate: rewrite prototxt/ and jobs/ from the shipped recipes, the layer types in docs/engine.md, and the digests of the paper's runs
generate: $(STAMP)
	$(BIN)/caffe-recipes generate $(RECIPES)
	$(BIN)/python -m tests.render.family_digests
	$(BIN)/python -m caffe_recipes.engine.supported docs/engine.md

## house: count the package's large modules and functions, repeated names and statements, compared with those before the rewrite
house: $(STAMP)
	$(BIN)/python -m tests.house

## zoo: try which prototxts below a folder the engine trains, ZOO=DIR; prints a table, or writes TABLE=FILE.md
zoo: $(STAMP)
	@test -n "$(ZOO)" || { echo "name a folder of prototxts: make zoo ZOO=DIR" >&2; exit 2; }
	$(BIN)/python -m caffe_recipes.engine.zoo $(ZOO) $(if $(TABLE),-o $(TABLE))

## pictures: redraw docs/images/; the screenshot is taken from a run of digits-local, which takes one to two minutes
pictures: $(STAMP)
	$(BIN)/python docs/pictures.py

## bench: run the benchmarks, and print their ratios
bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

## clean: remove the environments, builds and runs
clean:
	rm -rf $(VENV) .venv-tf build dist *.egg-info runs tmp

## help: list these targets
help:
	@sed -n 's/^## //p' Makefile

# PyTorch is pinned by version only, without hashes, since its builds differ.
$(STAMP): setup.cfg pyproject.toml constraints.txt requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "caffe-recipes needs Python 3.11 or newer; select one with make PYTHON=..." >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r requirements.lock
	@$(BIN)/python -m pip install --quiet -c constraints.txt torch
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $(STAMP)
