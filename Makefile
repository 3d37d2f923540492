# From a bare clone: `make demo` and `make test` need nothing but Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# `make sbom` lists what is installed beside the package: of SBOM_OF, an environment's python, written to SBOM
SBOM_OF ?= $(BIN)/python
SBOM ?= dist/dpilot.cdx.json
SBOM_TOOL := build/sbom

.PHONY: demo test bench lint docs sbom clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,transfer]'
	touch $@

demo: $(STAMP)
	$(BIN)/dpilot demo

test: $(STAMP)
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n auto

bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench,text]'
	$(BIN)/python -m benchmarks papers provan --table stream --quick

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

$(SBOM_TOOL)/bin/cyclonedx-py:
	$(PYTHON) -m venv $(SBOM_TOOL)
	$(SBOM_TOOL)/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0

sbom: $(SBOM_TOOL)/bin/cyclonedx-py
	mkdir -p $(dir $(SBOM))
	$< environment --pyproject pyproject.toml --mc-type library --output-reproducible --of JSON -o $(SBOM) $(SBOM_OF)

clean:
	rm -rf $(VENV) build dist out
