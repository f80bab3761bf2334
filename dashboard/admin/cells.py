"""How single values look in the console: times, links, flags, payloads. Everything a user wrote is escaped here."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from urllib.parse import urlencode

from django.contrib.admin.utils import quote
from django.contrib.humanize.templatetags.humanize import naturaltime
from django.db.models import Model
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

NOTHING = "-"
MOST_LIST_CHARACTERS = 40
MOST_DETAIL_CHARACTERS = 2_000
# JSON that is longer is shown as it is stored: laying it out would cost more than the page shows of it.
MOST_PARSED_CHARACTERS = 100_000


def moment(value: datetime) -> SafeString:
    """`3 minutes ago`, with the exact time in the title."""
    return format_html('<time datetime="{}" title="{}">{}</time>', value.isoformat(), exact(value), naturaltime(value))


def exact_moment(value: datetime) -> SafeString:
    """The exact time first, for the page of one row."""
    return format_html('<time datetime="{}">{}</time> ({})', value.isoformat(), exact(value), naturaltime(value))


def exact(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f UTC")


def flag(text: str) -> SafeString:
    """Something that needs a person's attention."""
    return format_html('<span class="flag">{}</span>', text)


def flags(texts: Iterable[str]) -> SafeString | str:
    return format_html_join("", "{}", ((flag(text),) for text in texts)) or NOTHING


def has_expired(expires_at: datetime) -> bool:
    return expires_at <= timezone.now()


def lease(expires_at: datetime | None) -> SafeString | str:
    """Whether a lease is held, and until when."""
    if expires_at is None:
        return NOTHING
    return format_html("{} {}", flag("expired") if has_expired(expires_at) else "held, ends", moment(expires_at))


def row_link(model: type[Model], key: str, text: object) -> SafeString:
    """A link to one row's page, by its key alone: nothing is looked up."""
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_change"
    return format_html('<a href="{}">{}</a>', reverse(name, args=(quote(key),)), text)


def list_link(model: type[Model], text: object, **lookups: object) -> SafeString:
    """A link to a list that the model's admin serves (`ReadOnlyAdmin.lists`)."""
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"
    return format_html('<a href="{}?{}">{}</a>', reverse(name), urlencode(lookups), text)


def shortened(text: str, most: int) -> SafeString | str:
    """The beginning of a text, the whole of it in the title."""
    return text if len(text) <= most else format_html('<span title="{}">{}…</span>', text, text[:most])


def ending(key: str) -> SafeString:
    """The end of a generated key, which is its random part, the whole of it in the title."""
    return format_html('<span title="{}">…{}</span>', key, key[-8:])


def payload(text: str | None) -> SafeString | str:
    """JSON laid out for reading and cut. `text` may itself be cut after `MOST_PARSED_CHARACTERS`."""
    if text is None:
        return NOTHING
    if len(text) <= MOST_PARSED_CHARACTERS:
        # Nested too deeply to be laid out: shown as it is stored.
        with suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    note = "" if len(text) <= MOST_DETAIL_CHARACTERS else f"… cut after {MOST_DETAIL_CHARACTERS:,} characters"
    return format_html('<pre class="payload">{}</pre>{}', text[:MOST_DETAIL_CHARACTERS], note)
