# Every target makes the virtual environment .venv in this checkout and reuses it.
#   make serve               serve the bundled model; ARGS="..." go to `tensorfold serve`
#   make test                run the tests; ARGS="..." go to pytest
#   make bench               measure the lane host's turns; prints figures
#   make check               lint, format and types
#   make PYTHON=python3.12   with another interpreter

PYTHON ?= python3

.PHONY: serve test bench check install

serve: install
	@.venv/bin/python -m tensorfold.tools.cli serve $(ARGS)

test: install
	@.venv/bin/python -m pytest --numprocesses auto --dist loadfile $(ARGS)

bench: install
	@.venv/bin/python -m pytest tests/bench --benchmark-only --benchmark-columns=min,median,rounds \
	  $(ARGS)

check: install
	@.venv/bin/python -m ruff check .
	@.venv/bin/python -m ruff format --check .
	@.venv/bin/python -m mypy

install: .venv/installed

.venv/installed: pyproject.toml tools/requirements.txt tools/install.py
	@command -v $(PYTHON) >/dev/null || \
	  { echo "TensorFold needs Python 3.11 or newer, and there is no $(PYTHON)." >&2; exit 2; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("TensorFold needs \
	Python 3.11 or newer, and $(PYTHON) is %d.%d.%d: name another, as in make PYTHON=python3.12." \
	% v[:3])'
	@$(PYTHON) tools/install.py
