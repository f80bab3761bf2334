"""`manage.py write_openapi`: the API documents as files, for those who generate clients or read diffs."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import yaml
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from server.schemas import FILES, document

FOLDER = Path(settings.BASE_DIR) / "docs" / "openapi"
MOST_DIFF_LINES = 40


class Command(BaseCommand):
    help = "Write docs/openapi/, or with --check fail if it is not what the code says."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--check", action="store_true", help="Write nothing; fail if a file would change.")

    def handle(self, *_: Any, **options: Any) -> None:
        drifts = []
        for name, file_name in FILES.items():
            path = FOLDER / file_name
            before = path.read_text() if path.exists() else ""
            after = as_yaml(document(name))
            if before == after:
                continue
            if options["check"]:
                drifts.append(diff_summary(file_name, before, after))
                continue
            FOLDER.mkdir(parents=True, exist_ok=True)
            path.write_text(after)
            self.stdout.write(f"{path.relative_to(settings.BASE_DIR)} written.")
            if has_same_version(before, after):
                self.stdout.write("Its contract changed: raise its version in server/schemas.py.")
        if drifts:
            raise CommandError("\n".join([*drifts, "Run `manage.py write_openapi` and look at the diff."]))


class _Dumper(yaml.SafeDumper):
    """Block style without aliases; in Python, so that every machine breaks lines alike."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def as_yaml(schema: dict[str, object]) -> str:
    """The document as text; the same one for the same document."""
    return yaml.dump(schema, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def diff_summary(name: str, before: str, after: str) -> str:
    """How a file differs from what the code says, cut to some lines."""
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), name, "the code", n=1, lineterm=""))
    left = len(lines) - MOST_DIFF_LINES
    return "\n".join([*lines[:MOST_DIFF_LINES], *([f"… and {left} more lines."] if left > 0 else [])])


def has_same_version(before: str, after: str) -> bool:
    """Whether a document that was there changed and its version did not."""
    if not before:
        return False
    old, new = yaml.safe_load(before), yaml.safe_load(after)
    return bool(old["info"]["version"] == new["info"]["version"])
