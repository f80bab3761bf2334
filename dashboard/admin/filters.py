"""The sidebar: links to whole lists. Picking one replaces what was picked before, so each is a list that is served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from durable import conf
from durable.models import Namespace

Lookups = dict[str, str]
_MOST_NAMESPACES = 100


class ListsFilter(admin.ListFilter):
    """Names some of an admin's `lists`. It filters nothing: the lookups in its links do."""

    def __init__(self, request: HttpRequest, params: Any, model: type[Model], model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        self.current: Lookups = request.GET.dict()

    def named_lists(self) -> Iterator[tuple[str, Lookups]]:
        raise NotImplementedError

    def is_selected(self, lookups: Lookups) -> bool:
        return all(self.current.get(name) == value for name, value in lookups.items())

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        for display, lookups in self.named_lists():
            yield {
                "selected": self.is_selected(lookups),
                "query_string": f"?{urlencode(lookups)}",
                "display": display,
            }

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str | None]:
        return []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset


class NamespaceFilter(ListsFilter):
    title = "namespace"

    def named_lists(self) -> Iterator[tuple[str, Lookups]]:
        yield "All", {}
        for name in Namespace.objects.order_by("name").values_list("name", flat=True)[:_MOST_NAMESPACES]:
            yield name, {"namespace": name}

    def is_selected(self, lookups: Lookups) -> bool:
        return self.current.get("namespace") == lookups.get("namespace")


def chosen_namespace(lookups: Lookups) -> str:
    """The namespace that is looked at; the default one where none was picked."""
    return lookups.get("namespace") or conf.current().default_namespace
