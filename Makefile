# Every target sets up what it needs; `make help` lists them. What they do stands in scripts/, one file a target.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON_OF_VENV := .venv/bin/python
ARGS ?=
# Without its files of bytecode each of many processes would compile torch, and each worker of pytest all tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test pictures mutants check format protos async-client folders release-protos wheel bench constraints clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv with Gangline and all extras, and build the page (at once when nothing changed)
	@scripts/setup

demo: setup ## Bring a cluster up, train the digits example over two agents, take the cluster down
	@$(PYTHON_OF_VENV) scripts/demo.py

test: setup ## Run all tests; ARGS="tests/unit -k name" narrows it down
	@scripts/test $(ARGS)

pictures: setup ## Write the pictures of the page in docs/images, from a real cluster and browser
	@scripts/test tests/page/test_pictures.py --pictures

mutants: setup ## Plant small defects and show those that no test notices; ARGS="20 --seed 7" chooses how many and which
	@$(PYTHON_OF_VENV) scripts/mutants.py $(ARGS)

check: setup ## Format, lint, types, layers, protos, size, the generated pages and the page for browsers
	@$(PYTHON_OF_VENV) scripts/check.py $(ARGS)

format: setup ## Write all files of Python and of the page as their formatters want them
	@.venv/bin/ruff check --fix-only --quiet . && .venv/bin/ruff format . && $(PYTHON_OF_VENV) scripts/check_page.py --write

protos: setup ## Generate gangline/v1 from protos/
	@scripts/generate_protos .

async-client: setup ## Write the asynchronous client of the SDK, and the page of its methods, from the one that blocks
	@$(PYTHON_OF_VENV) scripts/generate_async_client.py
	@$(PYTHON_OF_VENV) -m scripts.method_table

folders: setup ## Write docs/design/folders.md from the docstrings of the packages
	@$(PYTHON_OF_VENV) scripts/folder_table.py

release-protos: setup ## At a release: make the present protos the ones that later changes may not break
	@.venv/bin/buf build --exclude-source-info -o protos/released.binpb

wheel: setup ## Build the wheel of this checkout into dist/, for pip on other machines and environments
	@$(PYTHON_OF_VENV) scripts/build_page.py --require
	@$(PYTHON_OF_VENV) -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w dist . && ls dist/*.whl

bench: setup ## Print every figure of the README beside its peer's; ARGS="start" runs one
	@$(PYTHON_OF_VENV) scripts/bench.py $(ARGS)

constraints: setup ## Write constraints.txt from what is installed in .venv
	@$(PYTHON_OF_VENV) scripts/write_constraints.py

clean: ## Remove what the other targets made
	rm -rf page/node_modules page/src/api/schema.d.ts services/gateway/http/browser/static .venv .venv-protos .pythons dist build .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
