"""`manage.py create_token`: make an API token and print its secret, once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from wire.models import ROLES, TooManyTokensError
from wire.tokens import create_token


class Command(BaseCommand):
    help = "Make an API token. The secret is the last line of the output and cannot be shown again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--client", required=True, help="Who will use it; two live tokens per client.")
        parser.add_argument("--role", action="append", required=True, choices=ROLES, dest="roles")
        parser.add_argument("--namespace", action="append", dest="namespaces", help="A name, or * (default: default).")
        parser.add_argument("--days", type=int, help="Days until it expires; never without this.")

    def handle(self, *_: Any, **options: Any) -> None:
        expires_at = timezone.now() + timedelta(days=options["days"]) if options["days"] else None
        namespaces = options["namespaces"] or ["default"]
        try:
            token, secret = create_token(
                options["client"], roles=options["roles"], namespaces=namespaces, expires_at=expires_at
            )
        except TooManyTokensError as error:
            raise CommandError(f"{options['client']} has two live tokens; revoke one first.") from error
        self.stderr.write(f"Token of {token.client}: roles {', '.join(token.roles)}; {', '.join(token.namespaces)}.")
        self.stdout.write(secret)
