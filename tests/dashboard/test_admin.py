"""The console's tables: complete, read-only, bounded and escaped, on every database."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission
from django.db import connection, models
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from dashboard.admin import changelist
from dashboard.admin.base import ReadOnlyAdmin
from dashboard.admin.cells import MOST_DETAIL_CHARACTERS
from durable.ids import new_id
from durable.models import (
    ActivityAttempt,
    ActivityExecution,
    Failure,
    HistoryEvent,
    Namespace,
    RefusedReport,
    Run,
    Task,
    Timer,
    UpkeepPass,
    WorkerRegistration,
    Workflow,
)
from durable.models.fields import JSONTextField
from wire.models import ApiToken

pytestmark = [pytest.mark.django_db, pytest.mark.database]

MARK = "<x>"
MODELS: list[type[models.Model]] = [m for app in ("durable", "wire") for m in apps.get_app_config(app).get_models()]
# What a generic value would break, by the tables' own constraints.
FIXED: dict[type[models.Model], dict[str, Any]] = {
    HistoryEvent: {"run_id": f"{MARK}0"},
    Run: {"status": "pending", "closed_at": None, "closed_reason": None},
    Task: {"status": "leased", "kind": "workflow", "attempt_count": 1},
    Timer: {"status": "pending", "closed_at": None},
}
NUMBERED: dict[type[models.Model], tuple[str, ...]] = {
    ActivityExecution: ("step_number",),
    HistoryEvent: ("sequence", "terminal_step"),
    Timer: ("step_number",),
}
PLAIN_KEYS: dict[type[models.Model], str] = {Namespace: "name", Workflow: "id"}

every_table = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)


def make_rows(model: type[models.Model], numbers: range) -> None:
    """Rows with markup in every text column that takes it; what names another row names the one of its number."""
    model._default_manager.bulk_create(model(**row_values(model, number)) for number in numbers)


def row_values(model: type[models.Model], number: int) -> dict[str, Any]:
    values = {field.attname: field_value(field, number) for field in model._meta.concrete_fields}
    values |= FIXED.get(model, {})
    values |= dict.fromkeys(NUMBERED.get(model, ()), number + 1)
    values |= {name: f"row-{number}" for name in (PLAIN_KEYS.get(model), "workflow_id") if name in values}
    return {name: value for name, value in values.items() if value is not models.NOT_PROVIDED}


def field_value(field: Any, number: int) -> Any:
    if isinstance(field, models.BigAutoField):
        return models.NOT_PROVIDED
    if isinstance(field, JSONTextField):
        return [{MARK: f"{MARK}{number}"}]
    if field.choices:
        return field.choices[0][0]
    if isinstance(field, models.DateTimeField):
        return timezone.now() + timedelta(minutes=number)
    if isinstance(field, models.BooleanField):
        return True
    if isinstance(field, models.IntegerField):
        return 1
    return f"{MARK}{number}"


@pytest.fixture
def console(client: Client, django_user_model: Any) -> Client:
    """A superuser's browser; no password is hashed for it."""
    client.force_login(django_user_model.objects.create(username="root", is_staff=True, is_superuser=True))
    return client


@pytest.fixture
def full_tables() -> None:
    """Two rows in every table."""
    # Attempts refer to tasks.
    for model in sorted(MODELS, key=lambda model: model is ActivityAttempt):
        make_rows(model, range(2))


def list_url(model: type[models.Model], **lookups: Any) -> str:
    url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
    return f"{url}?{urlencode(lookups)}" if lookups else url


def whole_list_url(model: type[models.Model]) -> str:
    """The list with the most rows; history is listed run by run only."""
    return list_url(model, run_id=f"{MARK}0") if model is HistoryEvent else list_url(model)


def row_url(row: models.Model, page: str = "change") -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_{page}", args=(quote(row.pk),))


def row_of(model: type[models.Model]) -> Any:
    keys = {PLAIN_KEYS[model]: "row-1"} if model in PLAIN_KEYS else {}
    return model._default_manager.filter(**keys).latest("pk")


def page(client: Client, url: str) -> str:
    answer = client.get(url)
    assert answer.status_code == 200, url
    return answer.content.decode()


def statements(client: Client, url: str) -> list[str]:
    with CaptureQueriesContext(
        connection,
    ) as captured:
        page(client, url)
    return [query["sql"] for query in captured]


def admin_of(model: type[models.Model]) -> ReadOnlyAdmin:
    found = admin.site.get_model_admin(model)
    assert isinstance(found, ReadOnlyAdmin)
    return found


def served_lists() -> list[Any]:
    return [
        pytest.param(model, names, id=f"{model.__name__}-{'-'.join(names) or 'all'}")
        for model in MODELS
        for names in admin_of(model).lists
    ]


# -- complete ----------------------------------------------------------------------------------------------------------


@every_table
def test_registers_every_table_read_only(model: type[models.Model]) -> None:
    assert admin_of(model).model is model


@every_table
def test_renders_an_empty_list(console: Client, model: type[models.Model]) -> None:
    page(console, whole_list_url(model))


@every_table
def test_shows_and_escapes_every_row_and_column(console: Client, full_tables: None, model: type[models.Model]) -> None:
    row = row_of(model)
    listed, detail = page(console, whole_list_url(model)), page(console, row_url(row))

    assert row_url(row) in listed
    assert MARK not in listed + detail
    for field in model._meta.concrete_fields:
        if field.name != "secret_hash":
            assert f"field-{field.name}" in detail or f"field-{field.attname}" in detail
    assert "&lt;x&gt;" in detail


@every_table
def test_links_only_to_lists_and_rows_that_exist(console: Client, full_tables: None, model: type[models.Model]) -> None:
    detail = page(console, row_url(row_of(model)))

    links = re.findall(r'href="(/admin/(?:durable|wire)/[^"]+)"', detail)
    for link in {link.replace("&amp;", "&") for link in links}:
        page(console, link)


@every_table
def test_renders_pages_without_inline_code_or_styles(
    console: Client, full_tables: None, model: type[models.Model]
) -> None:
    for html in (page(console, whole_list_url(model)), page(console, row_url(row_of(model)))):
        assert not re.search(r"<style|<script(?![^>]*\ssrc=)|\sstyle=|\son[a-z]+=|javascript:", html)


# -- read-only ---------------------------------------------------------------------------------------------------------


@every_table
def test_refuses_every_change_even_by_a_superuser(
    console: Client, full_tables: None, model: type[models.Model]
) -> None:
    row = row_of(model)
    before = list(model._default_manager.order_by("pk").values())
    add_url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_add")
    fields = {field.name: "1" for field in model._meta.concrete_fields}

    answers = [
        console.get(add_url),
        console.post(add_url, fields),
        console.post(row_url(row), fields),
        console.get(row_url(row, "delete")),
        console.post(row_url(row, "delete"), {"post": "yes"}),
    ]
    deletion = {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"}
    console.post(whole_list_url(model), deletion)

    assert [answer.status_code for answer in answers] == [403] * 5
    assert list(model._default_manager.order_by("pk").values()) == before


@every_table
def test_asks_for_the_view_permission(client: Client, django_user_model: Any, model: type[models.Model]) -> None:
    user = django_user_model.objects.create_user("operator", is_staff=True)
    client.force_login(user)
    refused = client.get(list_url(model))

    user.user_permissions.add(Permission.objects.get(codename=f"view_{model._meta.model_name}"))
    allowed = client.get(list_url(model))

    assert (refused.status_code, allowed.status_code) == (403, 200)


# -- bounded -----------------------------------------------------------------------------------------------------------


@every_table
def test_takes_as_many_queries_for_a_hundred_rows_as_for_ten(
    console: Client, full_tables: None, model: type[models.Model]
) -> None:
    if model is ActivityAttempt:
        make_rows(Task, range(2, 100))
    make_rows(model, range(2, 10))
    page(console, whole_list_url(model))
    for_ten = statements(console, whole_list_url(model))
    make_rows(model, range(10, 100))
    for_hundred = statements(console, whole_list_url(model))

    assert len(for_hundred) == len(for_ten) <= 6


@every_table
def test_never_counts_without_bound_nor_reads_payloads_in_a_list(
    console: Client, full_tables: None, model: type[models.Model]
) -> None:
    url = whole_list_url(model)
    sql = statements(console, f"{url}{'&' if '?' in url else '?'}_facets=True&all=&o=2.-3")

    counts = [statement for statement in sql if "COUNT(" in statement]
    assert len(counts) == 1
    assert f"LIMIT {changelist.MOST_COUNTED + 1}" in counts[0]
    shown = admin_of(model).list_display
    payloads = [f.name for f in model._meta.concrete_fields if isinstance(f, JSONTextField) and f.name not in shown]
    for name in payloads:
        assert not any(connection.ops.quote_name(name) in statement for statement in sql)


def test_says_that_there_is_more_than_it_counted(console: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelist, "MOST_COUNTED", 1_000)
    make_rows(Run, range(1_001))

    listed = page(console, list_url(Run))

    assert "1,000+ runs" in listed
    assert page(console, list_url(Run, p=10)).count('<th class="field-id">') == 100
    assert console.get(list_url(Run, p=11)).status_code == 302


def test_says_how_many_there_are(console: Client) -> None:
    make_rows(Run, range(3))

    assert re.search(r"\s3 runs", page(console, list_url(Run)))


@pytest.mark.parametrize(
    ("model", "lookups"),
    [
        (Run, {"memo__contains": "a"}),
        (Run, {"status": "pending"}),
        (Run, {"task_queue": "orders"}),
        (Run, {"namespace": "default", "task_queue": "orders"}),
        (Run, {"namespace": ["a", "b"]}),
        (Run, {"blocked_at__isnull": "True"}),
        (Run, {"workflow_id": "a\0"}),
        (Task, {"namespace": "default"}),
        (HistoryEvent, {"event_type": "WorkflowStarted"}),
        (HistoryEvent, {"sequence": 1}),
        (ActivityAttempt, {"task__type": "step"}),
        (ApiToken, {"secret_hash__startswith": "a"}),
    ],
)
def test_refuses_a_list_that_no_index_serves(
    console: Client, model: type[models.Model], lookups: dict[str, Any]
) -> None:
    url = f"{list_url(model)}?{urlencode(lookups, doseq=True)}"

    assert console.get(url).status_code == 400


# The admin's statements are the same everywhere; only SQLite plans them alike for empty and for full tables.
@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(("model", "names"), served_lists())
def test_serves_each_list_from_an_index(
    console: Client, full_tables: None, model: type[models.Model], names: tuple[str, ...]
) -> None:
    lookups = {name: "False" if name.endswith("__isnull") else "1" for name in names}

    table = connection.ops.quote_name(model._meta.db_table)
    reads = [sql for sql in statements(console, list_url(model, **lookups)) if f"FROM {table}" in sql]

    assert reads
    for sql in reads:
        plan = query_plan(sql)
        # A list by key reads no other rows; a whole table is read in the order of an index, to the end of the page.
        assert ("SCAN durable_" if names else "FOR ORDER BY") not in plan, plan


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(
    "lookups",
    [{"lease_expires_at__isnull": "False"}, {"due_at__isnull": "False"}, {"run_id": "1"}, {"q": "1"}],
    ids=str,
)
def test_serves_them_from_an_index_when_statistics_say_otherwise(console: Client, lookups: dict[str, str]) -> None:
    closed = {"status": "completed", "lease_owner": None, "leased_at": None, "lease_expires_at": None, "due_at": None}
    make_rows(Task, range(5))
    Task.objects.bulk_create(
        Task(**{**row_values(Task, number), **closed, "run_id": "1"}) for number in range(5, 2_000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE durable_task")

    reads = [sql for sql in statements(console, list_url(Task, **lookups)) if 'FROM "durable_task"' in sql]

    assert not [plan for plan in map(query_plan, reads) if "SCAN durable_task" in plan]


@every_table
def test_takes_spaces_for_no_search(console: Client, full_tables: None, model: type[models.Model]) -> None:
    url = whole_list_url(model)

    assert statements(console, f"{url}{'&' if '?' in url else '?'}q=+")[2:] == statements(console, url)[2:]


def query_plan(sql: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
        return "\n".join(row[-1] for row in cursor.fetchall())


def test_lists_history_run_by_run_only(console: Client) -> None:
    make_rows(HistoryEvent, range(3))
    HistoryEvent.objects.filter(sequence=3).update(run_id="other")

    everything = statements(console, list_url(HistoryEvent))
    of_run = page(console, list_url(HistoryEvent, run_id=f"{MARK}0"))
    searched = page(console, list_url(HistoryEvent, q=f"{MARK}0"))

    assert not any("durable_historyevent" in statement for statement in everything)
    for listed in (of_run, searched):
        assert re.findall(r'<th class="field-sequence">.*?>(\d+)<', listed) == ["1", "2"]


# -- found -------------------------------------------------------------------------------------------------------------


def listed_keys(client: Client, url: str) -> list[str]:
    return re.findall(r'<th class="field-[a-z_]+"><a [^>]*>([^<]*)</a>', page(client, url))


def test_finds_workflows_by_how_their_id_begins(console: Client) -> None:
    for workflow_id in ("order-1", "order-2", "Order-3", "orders", "order", "z"):
        Workflow.objects.create(**{**row_values(Workflow, 1), "id": workflow_id})

    assert listed_keys(console, list_url(Workflow, q="order-")) == ["order-1", "order-2"]


def test_finds_runs_by_their_id_or_their_workflow(console: Client) -> None:
    first, second = make_run(workflow_id="a"), make_run(workflow_id="b")

    assert listed_keys(console, list_url(Run, q=first.id)) == [first.id]
    assert listed_keys(console, list_url(Run, q="b")) == [second.id]
    assert listed_keys(console, list_url(Run, q=first.id[:20])) == []


def test_finds_workers_by_their_id(console: Client) -> None:
    for worker_id in ("w-1", "w-2"):
        values = {**row_values(WorkerRegistration, 1), "namespace": "default", "worker_id": worker_id}
        WorkerRegistration.objects.create(**values)

    assert listed_keys(console, list_url(WorkerRegistration, q="w-2")) == ["w-2"]


def test_lists_runs_of_a_namespace_by_status(console: Client) -> None:
    old = make_run(created_at=timezone.now() - timedelta(days=1))
    new = make_run()
    make_run(status="waiting")
    make_run(namespace="other")

    assert listed_keys(console, list_url(Run, namespace="default", status="pending")) == [new.id, old.id]


# -- derived -----------------------------------------------------------------------------------------------------------


def make_run(**values: Any) -> Run:
    now = timezone.now()
    defaults = {
        "id": new_id(),
        "namespace": "default",
        "workflow_id": "w",
        "workflow_type": "five",
        "task_queue": "orders",
        "created_at": now,
        "last_progress_at": now,
    }
    return Run.objects.create(**{**defaults, **values})


def lease_task_of(run: Run, *, expires_in: timedelta) -> None:
    now = timezone.now()
    Task.objects.create(
        id=str(run.open_task_id),
        namespace=run.namespace,
        task_queue=run.task_queue,
        kind="workflow",
        type=run.workflow_type,
        status="leased",
        run_id=run.id,
        workflow_id=run.workflow_id,
        lease_owner="w-1",
        leased_at=now,
        lease_expires_at=now + expires_in,
        attempt_count=1,
        available_at=now,
        created_at=now,
    )


def cell(html: str, column: str) -> str:
    """The text of a column in the only row."""
    return re.sub(r"<[^>]+>|\s+", " ", re.findall(rf'<td class="field-{column}[^"]*">(.*?)</td>', html)[0]).strip()


def test_shows_a_run_as_running_while_its_task_is_leased(console: Client) -> None:
    run = make_run(open_task_id=new_id())
    ready = page(console, list_url(Run))
    lease_task_of(run, expires_in=timedelta(minutes=5))
    leased = page(console, list_url(Run))

    assert [cell(ready, "state"), cell(ready, "attention")] == ["pending", "-"]
    assert [cell(leased, "state"), cell(leased, "attention")] == ["running", "-"]


def test_flags_what_needs_attention(console: Client) -> None:
    past = timezone.now() - timedelta(minutes=1)
    run = make_run(open_task_id=new_id(), blocked_at=past, deadline_at=past)
    lease_task_of(run, expires_in=timedelta(seconds=-1))
    RefusedReport.objects.create(**{**row_values(RefusedReport, 1), "run_id": run.id})

    attention = cell(page(console, list_url(Run)), "attention")

    assert attention.split("  ") == ["blocked", "lease expired", "past deadline", "refused reports"]
    assert cell(page(console, list_url(Task)), "lease").startswith("expired")


def test_tells_a_timed_out_run_from_a_failed_one(console: Client) -> None:
    make_run(status="failed", closed_reason="timed_out", closed_at=timezone.now())

    assert cell(page(console, list_url(Run)), "state") == "timed out"


def test_flags_a_duty_whose_last_pass_failed(console: Client) -> None:
    now = timezone.now()
    UpkeepPass.objects.create(duty="a", last_run_at=now, last_success_at=now - timedelta(minutes=1))

    assert cell(page(console, list_url(UpkeepPass)), "attention") == "last pass failed"


def test_shows_relative_times_with_the_exact_one_in_the_title(console: Client) -> None:
    make_run(created_at=datetime(2024, 2, 29, 12, 30, 1, 500, tzinfo=UTC))

    listed = page(console, list_url(Run))

    assert 'title="2024-02-29 12:30:01.000500 UTC"' in listed
    assert "ago</time>" in listed


# -- payloads and secrets ----------------------------------------------------------------------------------------------


def event_page(client: Client, payload: Any) -> str:
    event = HistoryEvent.objects.create(**{**row_values(HistoryEvent, 1), "payload": payload})
    return str(re.findall(r'<pre class="payload">(.*?)</div>', page(client, row_url(event)), re.DOTALL)[0])


def test_cuts_and_escapes_long_texts(console: Client) -> None:
    failure = Failure.objects.create(**{**row_values(Failure, 1), "message": f'{MARK}"' * 100})

    listed, detail = page(console, list_url(Failure)), page(console, row_url(failure))

    escaped = "&lt;x&gt;&quot;"
    assert MARK not in listed + detail
    assert f'<span title="{escaped * 100}">{escaped * 10}…</span>' in listed
    assert escaped * 100 in detail


def test_lays_out_json(console: Client) -> None:
    assert event_page(console, {"a": [1], "ü": None}).startswith(
        "{\n  &quot;a&quot;: [\n    1\n  ],\n  &quot;ü&quot;: null\n}</pre>"
    )


@pytest.mark.parametrize("length", [MOST_DETAIL_CHARACTERS, 3_000_000])
def test_cuts_long_payloads(console: Client, length: int) -> None:
    shown = event_page(console, "a" * length)

    assert shown.split("</pre>")[0].count("a") == MOST_DETAIL_CHARACTERS - 1
    assert "cut after 2,000 characters" in shown


def test_shows_json_that_is_too_deep_to_lay_out(console: Client) -> None:
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    HistoryEvent.objects.bulk_create([HistoryEvent(**{**row_values(HistoryEvent, 1), "payload": deep})])
    # Deeper than Python parses from within a page.
    text = "[" * 5_000 + "]" * 5_000
    with connection.cursor() as cursor:
        cursor.execute("UPDATE durable_historyevent SET payload = %s", [text])

    assert "[" * 1_000 in page(console, row_url(HistoryEvent.objects.defer("payload").get()))


def test_never_shows_nor_reads_a_token_hash(console: Client) -> None:
    token = ApiToken.objects.create(
        client="c", prefix="abc", secret_hash="5ec4e7" * 10, roles=["worker"], namespaces=["*"]
    )

    with CaptureQueriesContext(connection) as captured:
        listed, detail = page(console, list_url(ApiToken)), page(console, row_url(token))

    assert "5ec4e7" not in listed + detail
    assert not any("secret_hash" in query["sql"] for query in captured)
    assert [cell(listed, name) for name in ("prefix", "state", "roles", "namespaces")] == ["abc", "live", "worker", "*"]


def test_json_of_a_token_is_whole_on_its_page(console: Client) -> None:
    token = ApiToken.objects.create(client="c", prefix="abc", roles=["admin", "worker"], namespaces=["a", "b"])

    detail = page(console, row_url(token))

    assert json.dumps(["admin", "worker"], indent=2).replace('"', "&quot;") in detail
