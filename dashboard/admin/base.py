"""The base of every table in the console: read-only, bounded, declared by column names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.contrib import admin
from django.db.models import Field, Model, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from dashboard.admin.changelist import CappedPaginator, KeyedChangeList
from dashboard.admin.columns import Cell, detail_cell, heading_cell, list_cell
from durable.models.fields import JSONTextField


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # django-stubs: generic only for the checker
    """Shows rows and changes none, whatever rights the user has; writes go through `durable.operations`."""

    # The lists that may be asked for by URL: lookups -> order; `q` stands for a search. Each is served by one index, so
    # no combination of parameters scans or sorts a table. Where a key leaves few rows, the order is by a column that no
    # other index begins with: else a database may walk that index for the order and look at every row for the key.
    # Without `()` the whole table is never listed.
    lists: Mapping[tuple[str, ...], tuple[str, ...]] = {(): ("-pk",)}
    # Methods that derive something worth reading before the columns.
    facts: tuple[str, ...] = ()
    # Columns that are neither shown nor read.
    hidden: tuple[str, ...] = ()

    actions = None
    change_form_template = "dashboard/detail.html"
    list_max_show_all = 0
    paginator = CappedPaginator
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    sortable_by = ()

    class Media:
        css = {"all": ("dashboard/admin.css",)}

    def __init__(self, model: type[Model], admin_site: admin.AdminSite) -> None:
        super().__init__(model, admin_site)
        shown: list[Field[Any, Any]] = [f for f in model._meta.concrete_fields if f.name not in self.hidden]
        payloads = [field for field in shown if isinstance(field, JSONTextField)]
        self._heading_cell = next(heading_cell(field) for field in shown if field.name == self.list_display[0])
        self._list_cells = {field.attname: list_cell(field) for field in shown}
        self._columns = [detail_cell(field) for field in shown if field not in payloads]
        self._payloads = [detail_cell(field) for field in payloads]
        self._deferred = [field.name for field in payloads if field.name not in self.list_display] + [*self.hidden]

    # -- rights --------------------------------------------------------------------------------------------------------

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    # -- lists ---------------------------------------------------------------------------------------------------------

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[KeyedChangeList]:
        return KeyedChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer(*self._deferred)

    def get_list_display(self, request: HttpRequest) -> list[Cell | str]:
        """The first column links to the row, so nothing else may link there."""
        return [self._heading_cell, *(self._list_cells.get(str(name), str(name)) for name in self.list_display[1:])]

    # -- the page of one row -------------------------------------------------------------------------------------------

    def related(self, row: Any) -> Iterable[SafeString]:
        """Links to the lists around a row."""
        return ()

    @admin.display(description="related")
    def related_lists(self, row: Any) -> SafeString:
        links = format_html_join("", "{}", ((link,) for link in self.related(row)))
        return format_html('<span class="related">{}</span>', links)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        around = ["related_lists"] if obj is not None and self.related(obj) else []
        sections = [(None, [*around, *self.facts]), ("Stored", self._columns), ("JSON", self._payloads)]
        return [(title, {"fields": fields}) for title, fields in sections if fields]
