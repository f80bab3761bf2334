"""Lists that an index serves whatever the URL says: closed filters, given orders, counts with an end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.text import capfirst

if TYPE_CHECKING:
    from dashboard.admin.base import ReadOnlyAdmin

MOST_COUNTED = 10_000
_IS_NULL = "__isnull"


class CappedCount(int):
    """A number of rows that is not known beyond `MOST_COUNTED`, and says so: `10,000+`."""

    has_more: bool

    def __new__(cls, found: int) -> Self:
        count = super().__new__(cls, min(found, MOST_COUNTED))
        count.has_more = found > MOST_COUNTED
        return count

    def __str__(self) -> str:
        return f"{MOST_COUNTED:,}+" if self.has_more else int.__repr__(self)


class CappedPaginator(Paginator):  # type: ignore[type-arg]  # django-stubs: generic only for the checker
    """Pages through the first `MOST_COUNTED` rows, so that neither the count nor an offset grows with the table."""

    object_list: QuerySet[Any]

    @cached_property
    def count(self) -> CappedCount:
        # In the list's own order, so that the count walks the list's own index: left to itself, SQLite reads the table.
        return CappedCount(self.object_list.values("pk")[: MOST_COUNTED + 1].count())


class KeyedChangeList(ChangeList):
    """Answers only the combinations of lookups that the admin names in `lists`, each in the order it names."""

    model_admin: ReadOnlyAdmin

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().__init__(request, *args, **kwargs)
        self.title = capfirst(str(self.opts.verbose_name_plural))
        if named := self._named():
            self.title += ": " + ", ".join(
                f"{name.removesuffix(_IS_NULL)} is set" if name.endswith(_IS_NULL) else f"{name} = {value}"
                for name, value in named.items()
            )

    def _named(self) -> dict[str, str]:
        """The lookups in the URL. Raises DisallowedModelAdminLookup for one that is repeated or cannot be stored."""
        named = {}
        for name, values in self.get_filters_params().items():
            # `isnull=True` would ask for nearly the whole table; a NUL is refused by PostgreSQL.
            if len(values) != 1 or "\0" in values[0] or (name.endswith(_IS_NULL) and values[0] != "False"):
                raise DisallowedModelAdminLookup(f"Filtering by {name} in this way is not served")
            named[name] = values[0]
        return named

    def _order(self) -> tuple[str, ...] | None:
        """The order of the list that the URL names; None for the whole table where that is never listed."""
        lists = {frozenset(names): order for names, order in self.model_admin.lists.items()}
        names = frozenset(self._named())
        if names and names not in lists:
            raise DisallowedModelAdminLookup(f"No index serves a list filtered by {', '.join(sorted(names))}")
        # Spaces alone search for nothing.
        return lists.get(frozenset({SEARCH_VAR}) if self.query.strip() else names)

    def get_filters(self, request: HttpRequest) -> Any:
        self._order()
        return super().get_filters(request)

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Never what `?o=` says: any other order would sort the whole table."""
        return list(self._order() or ("pk",))

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        queryset = super().get_queryset(request, exclude_parameters)
        return queryset.none() if self._order() is None else queryset
