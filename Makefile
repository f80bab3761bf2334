# make install | up | demo | test | check
PYTHON ?= python3
PORT ?= 8000
# make test DB=sqlite|postgres|mariadb  ARGS="-k foo"
DB ?= all
ARGS ?=

BIN := .venv/bin
STAMP := .venv/installed

# `check` looks at code, not at anyone's data: no database file is made.
CHECK_ENV := DEBUG=1 DATABASE_URL=sqlite://:memory:
DEPLOY_ENV := DEBUG=0 DATABASE_URL=sqlite://:memory: ALLOWED_HOSTS=durable.example \
	SECURE_COOKIES=1 SECURE_SSL_REDIRECT=1 SECURE_HSTS_SECONDS=3600 \
	SECRET_KEY=only-for-the-deployment-check-0123456789-abcdefghijklmnopqrstuvwxyz

.PHONY: help install up demo test check format clean

help:
	@echo "make install  create .venv with everything to run and test"
	@echo "make up       run the server on SQLite (PORT=8000)"
	@echo "make demo     the same, with a worker and ten workflows"
	@echo "make test     run the tests on SQLite, PostgreSQL and MariaDB (DB=postgres, ARGS=\"-k foo\")"
	@echo "make check    lint, types, import contracts, migrations, deployment and OpenAPI drift"
	@echo "make format   apply ruff's formatting and safe fixes"
	@echo "make clean    remove the environments and caches; keeps db.sqlite3"

install: $(STAMP)

$(STAMP): requirements.txt requirements-mysql.txt requirements-dev.txt tools/install.py
	@$(PYTHON) tools/install.py
	@touch $@

up: install
	@$(BIN)/python -m tools.demo up --port $(PORT)

demo: install
	@$(BIN)/python -m tools.demo demo --port $(PORT)

test: install
	@$(BIN)/python -m tools.test --database $(DB) -- $(ARGS)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(CHECK_ENV) $(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(CHECK_ENV) $(BIN)/python manage.py makemigrations --check --dry-run
	$(DEPLOY_ENV) $(BIN)/python manage.py check --deploy --fail-level WARNING
	$(CHECK_ENV) $(BIN)/python manage.py write_openapi --check

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-peers .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
