# Everything runs in .venv, which the first target that needs it makes. PYTHON picks the interpreter.
PYTHON ?= python3
export PYTHON
VENV ?= .venv
BIN := $(VENV)/bin
# Stamps: the build tools, without and with mypyc; the demo's packages; the package, with the core
# interpreted and compiled; the developers' packages; the frameworks; the tools of `make wheels`.
CMAKE := $(VENV)/cmake-installed
TOOLS := $(VENV)/tools-installed
DEMO := $(VENV)/demo-installed
QUICK := $(VENV)/quick-installed
PACKAGE := $(VENV)/package-installed
STAMP := $(VENV)/installed
FRAMEWORKS := $(VENV)/frameworks-installed
WHEEL_TOOLS := $(VENV)/wheel-tools-installed
# Tests start thousands of Python processes: the first one writes bytecode for all others.
unexport PYTHONDONTWRITEBYTECODE
# Python compiles what it imports: pip would spend half a minute on modules that nobody does.
INSTALL = $(BIN)/python -m pip install --no-build-isolation --no-compile -c constraints.txt \
    $(if $(wildcard $@),--quiet)
# Without MAKEFLAGS: ninja would look for make's job server, find it closed, and print an error.
PIP = MAKEFLAGS= $(INSTALL)
# The pip of $(PYTHON), where there is one, gives the environment its own in a third of the time.
NEW_VENV = $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $(VENV) install \
    --quiet --no-compile -c constraints.txt pip 2> /dev/null || $(PYTHON) -m venv $(VENV)
# The same, with a line for each part that takes time. $(1): what is installed.
SHOW = MAKEFLAGS= $(PYTHON) tests/progress.py "$(1)" $(INSTALL)
# An editable install finds only the packages that were there when it was made.
PACKAGES := $(wildcard $(addsuffix /__init__.py,reducer reducer/* reducer/*/* \
                        client/* client/*/* client/*/*/*))
# What `make venv` compiles: C, C++, and the Python that mypyc takes (reducer/native/mypyc.cmake).
NATIVE := $(wildcard reducer/native/* client/engine/CMakeLists.txt client/engine/*/*.* client/engine/tests/python/* \
                     $(addsuffix /*.py,$(addprefix reducer/,core core/* server/data wire)))
FORMATTED := $(wildcard $(addprefix reducer/native/*.,c h inc cpp) \
                        $(addprefix client/engine/*/*.,h cc cpp) \
                        $(addprefix client/engine/tests/python/*.,h cpp) \
                        $(addprefix nccl_plugin/*.,h cc) $(wildcard nccl_plugin/tests/*.cpp nccl_plugin/tests/*.h) \
                        $(addprefix bench/reference/*.,c h) bench/ps/pslite/*.cc)
COMMA := ,
FUZZ_SECONDS ?= 2
TSAN := halt_on_error=1 suppressions=$(CURDIR)/client/engine/tests/tsan.supp
# CMake reads these: ccache avoids compiling the same file again in another folder.
ifneq ($(shell command -v ccache),)
export CMAKE_C_COMPILER_LAUNCHER ?= ccache
export CMAKE_CXX_COMPILER_LAUNCHER ?= ccache
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= true
endif

.PHONY: help venv demo docs nccl-plugin wheels test pytest test-container test-nccl test-gpu \
    test-frameworks test-outside test-wheels check lint types style tidy format native-test bytecode \
    sanitize nightly soak bench clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

# The package is compiled while its dependencies are downloaded.
venv: ## Make or refresh .venv with the project in it
	@$(MAKE) --no-print-directory $(TOOLS)
	@$(MAKE) --no-print-directory -j2 $(PACKAGE) $(DEMO)
	@$(MAKE) --no-print-directory $(STAMP)

# The build tools come first and from the constraints, instead of a fresh isolated copy each time.
# pip is the last thing that a new environment gets: without pip it is not complete.
$(CMAKE): pyproject.toml constraints.txt
	@tests/machine.sh install build
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || \
	    $(PYTHON) tests/progress.py "Python environment $(VENV)" sh -c "$(NEW_VENV)"
	@$(call SHOW,build tools) --upgrade cmake nanobind ninja pip scikit-build-core
	@touch $@

$(TOOLS): $(CMAKE)
	$(PIP) "mypy[mypyc]"
	@touch $@

$(DEMO): $(CMAKE)
	@$(call SHOW,PyTorch and other packages) --only-deps ".[demo]"
	@TORCH_DEVICE_BACKEND_AUTOLOAD=0 $(PYTHON) tests/progress.py "bytecode of PyTorch" \
	    $(BIN)/python -c "import torch._dynamo"
	@touch $@

# For the demo, in a third of the time: without mypyc, so that the reducers' core is interpreted, and
# without optimization.
$(QUICK): $(CMAKE) $(NATIVE) $(PACKAGES)
	@$(call SHOW,client and kernels) --verbose --no-deps -C build-dir=build/quick \
	    -C cmake.build-type=None -C cmake.define.CMAKE_CXX_FLAGS="-O0 -DNDEBUG" \
	    -C cmake.define.CMAKE_C_FLAGS="-O0 -DNDEBUG" -C cmake.define.ORS_MYPYC=OFF \
	    -C cmake.define.ORS_ENGINE_PARTS=OFF -e .
	@touch $@

# Editable: a changed Python file needs nothing; a compiled one or a package's __init__.py a rebuild
# of seconds.
$(PACKAGE): $(TOOLS) $(NATIVE) $(PACKAGES)
	$(PIP) $(if $(wildcard $@),,--verbose) --no-deps -e .
	@touch $@

$(STAMP): $(DEMO) $(PACKAGE)
	$(PIP) --group dev
	@touch $@

$(FRAMEWORKS): $(STAMP)
	$(PIP) --only-deps ".[frameworks]"
	@touch $@

$(WHEEL_TOOLS): $(TOOLS)
	$(PIP) --group wheels
	@touch $@

# What matplotlib and torch keep for later stays in this folder.
demo: export MPLCONFIGDIR := $(CURDIR)/build/matplotlib
demo: export TORCHINDUCTOR_CACHE_DIR := $(CURDIR)/build/torchinductor
demo: ## Train over reducers beside gloo, on hosts with limited NICs; table and picture
	@$(MAKE) --silent -j2 $(if $(wildcard $(PACKAGE)),$(PACKAGE),$(QUICK)) $(DEMO)
	@$(BIN)/reducer demo

docs: $(STAMP) ## The documentation as a site, build/docs/site
	$(BIN)/python -m docs.assemble build/docs
	$(BIN)/zensical build --strict -f build/docs/zensical.toml

nccl-plugin: $(STAMP) ## The plugin for NCCL, build/native/nccl_plugin/libnccl-net-reducer.so
	$(call NATIVE_BUILD,native,)
	test -e build/native/nccl_plugin/libnccl-net-reducer.so

wheels: $(WHEEL_TOOLS) ## Build dist/: a wheel for each Python of this machine, and an sdist
	$(BIN)/python -m deploy.wheels

TESTS := $(addprefix tests/,e2e gpu nccl net unit)
# On a complete machine a test may skip only for a reason in tests/support/skips.py.
BY_FILE := --dist loadfile --no-loadscope-reorder
STRICT = $(shell test $$(id -u) = 0 && tests/machine.sh complete test && echo -p tests.support.skips)

test: ## All checks and tests; installs what this machine lacks, as root or with sudo
	@tests/machine.sh install test
	$(MAKE) --no-print-directory venv
	$(MAKE) --no-print-directory -j2 --output-sync=line types style native-test bytecode
	$(MAKE) --no-print-directory pytest

# What tests and ranks import is compiled once here: else each of five workers would compile all
# tests, and all of PyTorch. The one test lets Hypothesis write its tables. `pytest` shows what is
# wrong with a test that cannot be imported.
bytecode: $(STAMP)
	@$(BIN)/python -c "import tests.support.warm"
	@$(BIN)/python -m pytest -q $(TESTS) -k any_text_is_read_or_refused > /dev/null || true

# Files in the order of tests/conftest.py. Many tests wait, so two cores carry five of them.
pytest:
	$(BIN)/python -m pytest $(STRICT) $(PYTEST_ARGS) -n 5 $(BY_FILE) $(TESTS)

test-container: $(STAMP) ## Build the images of deploy/ and run them; as root, with buildah and podman
	$(BIN)/python -m pytest $(PYTEST_ARGS) -o faulthandler_timeout=900 tests/container

test-wheels: $(STAMP) wheels ## Build the wheels, install each where there is no compiler, and train with it
	$(BIN)/python -m pytest $(PYTEST_ARGS) -o faulthandler_timeout=900 tests/wheels

test-nccl: nccl-plugin ## Test the plugin under real NCCL without a GPU; 1.7 GB of wheels
	$(BIN)/python -m tests.support.nccl_wheels
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m nccl tests/nccl

test-frameworks: $(FRAMEWORKS) ## Test the frameworks beside plain PyTorch over real reducers; 2 GB of wheels
	$(BIN)/python -m pytest $(PYTEST_ARGS) -n 2 --dist loadfile tests/frameworks \
	    $(foreach page,lightning keras jax ray,"tests/e2e/test_docs.py::test_the_commands_of_a_page_run[$(page)]")

test-outside: $(FRAMEWORKS) ## Run the test suites of others on real reducers (tests/outside/README.md)
	$(BIN)/python -m tests.outside

test-gpu: nccl-plugin ## Test what needs a CUDA device; without one, skip with the reason
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m gpu tests/e2e tests/gpu

check: lint tidy ## Run lint, clang-tidy, and the checks of layers and documents
	$(BIN)/python -m pytest -q $(addprefix tests/unit/project/test_,layering.py changelog.py documents.py)

lint: types style ## Check types, style and formats

types: $(STAMP) ## Check types with mypy and ty
	$(BIN)/mypy
	$(BIN)/ty check --quiet

style: docs ## Check style and formats, build the site, run benchmarks and fuzzers briefly
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run -Werror $(FORMATTED)
	$(BIN)/python -m pytest -q bench/micro --benchmark-disable
	$(BIN)/python -m tests.fuzz.decoder --seconds $(FUZZ_SECONDS)

tidy: $(STAMP) ## Run clang-tidy over C and C++ (.clang-tidy); a minute
	$(call NATIVE_CONFIGURE,native,)
	$(BIN)/run-clang-tidy.py -clang-tidy-binary $(BIN)/clang-tidy -p build/native -j 2 -quiet \
	    'client/engine/[a-z]*/[a-z_]*[.]cc$$|nccl_plugin/[a-z_]*[.]cc$$|reducer/native/[a-z0-9_]*[.]c$$'

format: $(STAMP) ## Write Python, C and C++ as `check` wants them
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(FORMATTED)

# $(1): build folder, $(2): sanitizers, which bring their own -g: that takes a third of the time.
define NATIVE_CONFIGURE
	$(BIN)/cmake -G Ninja -S reducer/native -B build/$(1) -DORS_NATIVE_TESTS=ON \
	    -DORS_SANITIZE=$(2) -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DCMAKE_BUILD_TYPE=None \
	    -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
	    -DCMAKE_C_FLAGS="-O2 -DNDEBUG" -DCMAKE_CXX_FLAGS="-O2 -DNDEBUG" > /dev/null
endef
define NATIVE_BUILD
	$(call NATIVE_CONFIGURE,$(1),$(2))
	MAKEFLAGS= $(BIN)/cmake --build build/$(1)
endef
# The same. The last step runs C++ workers and ranks of the plugin against real reducers, under the
# sanitizers also with the lanes on three I/O loops.
define NATIVE_TESTS
	$(call NATIVE_BUILD,$(1),$(2))
	TSAN_OPTIONS="$(TSAN) die_after_fork=0" \
	    $(BIN)/ctest --test-dir build/$(1) --output-on-failure \
	    $(if $(2),,--parallel 4)
	for loops in $(if $(2),1 3,1); do \
	    export REDUCER_IO_THREADS=$$loops TSAN_OPTIONS="$(TSAN)"; \
	    $(BIN)/python -m tests.support.engine_worker build/$(1)/engine/tests/engine_worker || exit 1; \
	    test ! -d build/$(1)/nccl_plugin || \
	        $(BIN)/python -m tests.support.nccl_ranks build/$(1)/nccl_plugin/tests/nccl_collnet || exit 1; \
	done
endef

native-test: $(STAMP) ## Run the tests in C and C++
	$(call NATIVE_TESTS,native,)

sanitize: $(STAMP) ## Run the same under ASan with UBSan, then under TSan
	$(call NATIVE_TESTS,sanitize-address,address$(COMMA)undefined)
	$(call NATIVE_TESTS,sanitize-thread,thread)

nightly: $(STAMP) nccl-plugin ## Run what is too long for every commit; hours, gigabytes of wheels
	$(BIN)/python -m tests.nightly $(PARTS)

soak: $(STAMP) nccl-plugin ## Fuzz, forge, storm, check models, kill by the hundred, run all tests three times
	$(BIN)/python -m tests.support.storm --seeds 5200 --rounds 100
	$(BIN)/python -m tests.model.run --full --megabytes 8000
	$(BIN)/python -m tests.fuzz.decoder --seconds 600
	for target in decoder lane handshake; do \
	    $(BIN)/python -m tests.fuzz.guided $$target --seconds 600 || test $$? = 2 || exit 1; done
	$(call NATIVE_TESTS,sanitize-address,address$(COMMA)undefined)
	build/sanitize-address/engine/tests/engine_fuzz 100000000 1 tests/vectors/*/frames.txt
	$(BIN)/python -m tests.fuzz.handshakes --count 1000000
	$(BIN)/python -m tests.soak
	for turn in 1 2 3; do $(BIN)/python -m pytest -q $(PYTEST_ARGS) || exit 1; done

bench: $(STAMP) ## Three minutes of tables beside gloo; limited NICs need root
	$(BIN)/python -m bench.all

clean: ## Remove .venv and everything that was built
	rm -rf .venv build dist demo-out .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f reducer/kernels/_native*.so client/reducer_client/_engine*.so
