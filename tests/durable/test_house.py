"""House rules that no reader can be expected to check: sizes, arrows, what is caught where (docs/design.md 2)."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("durable", "wire", "worker_api", "control_api", "dashboard", "server")
MOST_LINES = 500

# Modules that may catch whatever goes wrong, how often they do, and why nothing narrower would do there.
BOUNDARIES = {
    "durable/carried_polls.py": (1, "the completion is recorded, and what is read after it cannot deny it"),
    "durable/sql/pool.py": (2, "gives back the thread's place, then raises the same error on"),
    "durable/upkeep/items.py": (1, "one row that cannot be handled must not stop the others"),
    "durable/upkeep/loop.py": (2, "the loop and its other duties outlive a duty or a database that fails"),
    "durable/wakeups/runtime.py": (1, "the loops of a serving process outlive a round that fails"),
    "wire/refused.py": (1, "the count of refused reports is best effort, off the answer's path"),
    "wire/views.py": (1, "every error becomes an answer: the documented one, or a 500 that says nothing"),
}

# What speaks HTTP, or serves it.
HTTP = (
    "django.http", "django.urls", "django.views", "django.shortcuts", "django.middleware", "django.core.handlers",
    "django.contrib.admin", "rest_framework", "drf_spectacular", "uvicorn", "whitenoise", "csp", "http",
    "urllib.request", "httpx", "aiohttp", "requests", "socketserver",
)  # fmt: skip


def modules(*packages: str) -> Iterator[tuple[str, str]]:
    """(path, source) of our modules; migrations are generated."""
    for package in packages or PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "migrations" not in path.parts:
                yield path.relative_to(ROOT).as_posix(), path.read_text()


def imports_of(source: str) -> Iterator[str]:
    """Full names of what a module imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_under(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def test_looks_at_the_whole_house() -> None:
    paths = {path for path, _ in modules()}

    assert {path.split("/")[0] for path in paths} == set(PACKAGES)
    assert len(paths) > 100


def test_keeps_modules_short_enough_to_read() -> None:
    too_long = {path: len(source.splitlines()) for path, source in modules() if len(source.splitlines()) > MOST_LINES}

    assert too_long == {}


def test_says_in_each_module_what_it_is() -> None:
    silent = [path for path, source in modules() if source.strip() and ast.get_docstring(ast.parse(source)) is None]

    assert silent == []


def test_gives_modules_real_names() -> None:
    stems = {path: Path(path).stem for path, _ in modules()}

    assert [path for path, stem in stems.items() if stem in ("utils", "helpers", "common", "misc")] == []


# -- arrows ------------------------------------------------------------------------------------------------------------


def test_keeps_the_import_contracts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)

    code = lint_imports(no_cache=True)

    assert code == 0, capsys.readouterr().out


def test_engine_imports_no_http() -> None:
    spoken = {
        path: sorted(name for name in imports_of(source) if any(is_under(name, package) for package in HTTP))
        for path, source in modules("durable")
    }

    assert {path: names for path, names in spoken.items() if names} == {}


def test_engine_never_goes_around_djangos_cursor() -> None:
    # A raw cursor that goes on after a deadlock commits receipts without effects (docs/concurrency.md 15).
    raw = [path for path, source in modules("durable", "wire") if re.search(r"connection\.connection(?! is )", source)]

    assert raw == []


# -- catching ----------------------------------------------------------------------------------------------------------


def catches_everything(handler: ast.ExceptHandler) -> bool:
    """A bare `except`, or one that names Exception or BaseException, alone or among others."""
    if handler.type is None:
        return True
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(name, ast.Name) and name.id in ("Exception", "BaseException") for name in caught)


def wide_handlers(source: str) -> list[ast.ExceptHandler]:
    nodes = ast.walk(ast.parse(source))
    return [node for node in nodes if isinstance(node, ast.ExceptHandler) and catches_everything(node)]


def test_catches_everything_only_at_the_named_boundaries() -> None:
    found = Counter({path: len(wide_handlers(source)) for path, source in modules()})

    assert +found == Counter({path: count for path, (count, _) in BOUNDARIES.items()})


def test_pool_raises_on_whatever_it_catches() -> None:
    handlers = wide_handlers((ROOT / "durable/sql/pool.py").read_text())

    last = [handler.body[-1] for handler in handlers]
    assert last
    assert all(isinstance(statement, ast.Raise) and statement.exc is None for statement in last)


def test_suppresses_nothing_it_does_not_name() -> None:
    wide = ("suppress(Exception", "suppress(BaseException")

    assert [path for path, source in modules() if any(word in source for word in wide)] == []
