"""Bearer tokens: who may call, how long, and how soon a change is noticed (docs/protocol/worker-protocol.md 1.5)."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

import wire.auth
from durable.models import Namespace, WorkflowCommand
from tests.client import TOKEN, ApiClient
from tests.protocol.waiting import wait_until
from tests.snapshot import nothing_recorded
from wire.auth import CACHE_SECONDS, forget_cached_access
from wire.models import ApiToken, TooManyTokensError
from wire.tokens import create_token, revoke_token

DISCOVERY = "/api/cluster/info"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The clock of the token cache, moved by hand."""
    hand = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(wire.auth, "time", SimpleNamespace(monotonic=lambda: hand.now))
    return hand


def token(client: str = "ours", *, roles: tuple[str, ...] = ("operator",), **options: Any) -> tuple[ApiToken, str]:
    return create_token(client, roles=roles, **{"namespaces": ["default"], **options})


def status(api: ApiClient, secret: str | None, path: str = "/api/workflows", **headers: str) -> int:
    return api.get(path, token=secret, headers=headers).status


# -- which text is a token ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("database")
def test_stores_no_secret() -> None:
    row, secret = token()

    assert row.secret_hash == hashlib.sha256(secret.encode()).hexdigest()
    assert secret not in {str(value) for value in ApiToken.objects.values_list().get()}


@pytest.mark.parametrize(
    "header",
    [
        "", "Bearer", "Bearer ", "Basic {0}", "{0}", "Token {0}", "Bearer {0}x", "Bearer x{0}", "Bearer {0} {0}",
        "Bearer dw__", "Bearer dw_%00_x", "Bearer dw_\x00_x", "Bearer ü", "Bearer dw_" + "a" * 5000,
        "Bearer dw_0123456789abcdef_x",
    ],
)  # fmt: skip
def test_refuses_what_is_not_quite_a_token(api: ApiClient, header: str) -> None:
    _, secret = token()

    response = api.get("/api/workflows", token=None, headers={"Authorization": header.format(secret)})

    assert (response.status, response.body["reason"]) == (401, "unauthorized")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_takes_the_scheme_in_any_case(api: ApiClient, scheme: str) -> None:
    _, secret = token()

    assert api.get("/api/workflows", token=None, headers={"Authorization": f"{scheme}  {secret} "}).status == 200


def test_refuses_the_secret_of_another_token_under_a_known_prefix(api: ApiClient) -> None:
    first, second = token("a")[1], token("b")[1]
    mixed = "_".join([*first.split("_", 2)[:2], second.split("_", 2)[2]])

    assert status(api, mixed) == 401


# -- how long it lives -------------------------------------------------------------------------------------------------


def test_refuses_an_expired_token(api: ApiClient) -> None:
    now = timezone.now()
    _, expired = token("a", expires_at=now - timedelta(seconds=1))
    _, lasting = token("b", expires_at=now + timedelta(hours=1))

    assert (status(api, expired), status(api, lasting)) == (401, 200)


def test_refuses_a_revoked_token(api: ApiClient) -> None:
    row, secret = token()
    revoke_token(row)

    assert status(api, secret) == 401


@pytest.mark.usefixtures("database")
def test_keeps_the_first_time_a_token_was_revoked() -> None:
    row, _ = token()
    revoke_token(row)
    before = ApiToken.objects.get().revoked_at

    revoke_token(row)

    assert ApiToken.objects.get().revoked_at == before


def test_lets_a_client_have_two_live_tokens(api: ApiClient) -> None:
    old, new = token("ours"), token("ours")

    assert [status(api, secret) for _, secret in (old, new)] == [200, 200]
    with pytest.raises(TooManyTokensError):
        token("ours")


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("over", [{"revoked_at": timezone.now()}, {"expires_at": timezone.now()}])
def test_counts_only_live_tokens_of_a_client(over: dict[str, Any]) -> None:
    old, _ = token("ours")
    token("ours")
    ApiToken.objects.filter(pk=old.pk).update(**over)

    assert token("ours")[0].pk is not None


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("client", "roles", "namespaces"),
    [
        ("", ["worker"], ["*"]),
        ("  ", ["worker"], ["*"]),
        ("c", [], ["*"]),
        ("c", ["root"], ["*"]),
        ("c", ["worker"], []),
    ],
)
def test_makes_no_token_that_means_nothing(client: str, roles: list[str], namespaces: list[str]) -> None:
    with pytest.raises(ValueError, match=r"."):
        create_token(client, roles=roles, namespaces=namespaces)


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_notices_a_revoked_token_within_ten_seconds(api: ApiClient, clock: Any) -> None:
    row, secret = token()
    assert status(api, secret) == 200
    revoke_token(row)

    statuses = []
    for passed in (0, 9.9, 0.2):
        clock.now += passed
        statuses.append(status(api, secret))

    assert CACHE_SECONDS == 10
    assert statuses == [200, 200, 401]


def test_notices_a_new_namespace_within_ten_seconds(api: ApiClient, clock: Any) -> None:
    assert status(api, TOKEN, **{"X-Namespace": "fresh"}) == 404
    Namespace.objects.create(name="fresh")

    clock.now += 10.1

    assert status(api, TOKEN, **{"X-Namespace": "fresh"}) == 200


def test_asks_the_database_once_for_many_calls(api: ApiClient, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, secret = token()
    asked: list[Any] = []
    real = wire.auth.find_access
    monkeypatch.setattr(wire.auth, "find_access", lambda *args: asked.append(args) or real(*args))

    for _ in range(5):
        assert status(api, secret) == 200

    assert len(asked) == 1


def test_caches_an_unknown_token_too(api: ApiClient, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(wire.auth, "find_access", lambda *args: asked.append(args))

    for _ in range(5):
        assert status(api, "dw_000000000000_x") == 401

    assert len(asked) == 1


# -- its last use ------------------------------------------------------------------------------------------------------


def test_notes_the_last_use_off_the_answer(api: ApiClient) -> None:
    row, secret = token()
    before = timezone.now()
    assert status(api, secret) == 200

    wait_until(ApiToken.objects.exclude(last_used_at=None).exists)

    assert ApiToken.objects.get(pk=row.pk).last_used_at >= before


def test_notes_the_last_use_once_a_minute_at_most(populated: ApiClient) -> None:
    row, secret = token()
    ApiToken.objects.filter(pk=row.pk).update(last_used_at=timezone.now() - timedelta(seconds=50))
    with nothing_recorded():
        for _ in range(3):
            forget_cached_access()
            assert status(populated, secret) == 200

    long_ago = timezone.now() - timedelta(seconds=61)
    ApiToken.objects.filter(pk=row.pk).update(last_used_at=long_ago)
    forget_cached_access()
    assert status(populated, secret) == 200
    wait_until(lambda: ApiToken.objects.get(pk=row.pk).last_used_at > long_ago)


# -- roles and namespaces ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "worker", "control", "discovery"),
    [("worker", True, False, True), ("operator", False, True, True), ("admin", False, True, True)],
)
def test_lets_a_role_use_its_plane(api: ApiClient, role: str, worker: bool, control: bool, discovery: bool) -> None:
    _, secret = token(roles=(role,))

    statuses = [
        api.post("/api/worker/heartbeat", {"worker_id": "w-1"}, token=secret).status,
        api.get("/api/workflows", token=secret).status,
        api.get(DISCOVERY, token=secret).status,
    ]

    assert [code != 403 for code in statuses] == [worker, control, discovery]


def test_lets_a_token_with_several_roles_use_both_planes(api: ApiClient) -> None:
    _, secret = token(roles=("worker", "admin"))

    assert api.post("/api/worker/heartbeat", {"worker_id": "w"}, token=secret).body["reason"] == "worker_not_registered"
    assert status(api, secret) == 200


def test_says_which_roles_would_do(api: ApiClient) -> None:
    _, secret = token(roles=("operator", "admin"))

    response = api.post("/api/worker/register", token=secret)

    assert response.status == 403
    assert response.plain == {
        "reason": "forbidden",
        "message": "This token may not use this route.",
        "role": "admin,operator",
        "allowed_roles": ["worker"],
    }


@pytest.mark.parametrize(
    ("namespaces", "named", "expected"),
    [
        (["default"], "default", 200), (["default"], "theirs", 404), (["theirs"], "default", 404),
        (["theirs"], "THEIRS", 200), (["THEIRS"], "theirs", 200), (["*"], "theirs", 200), (["*"], "nowhere", 404),
        (["default", "theirs"], "theirs", 200),
    ],
)  # fmt: skip
def test_lets_a_token_use_its_namespaces(api: ApiClient, namespaces: list[str], named: str, expected: int) -> None:
    Namespace.objects.create(name="theirs")
    _, secret = token(namespaces=namespaces)

    assert status(api, secret, **{"X-Namespace": named}) == expected


def test_records_the_client_of_the_token_with_a_command(api: ApiClient) -> None:
    _, secret = token("the billing team")

    assert api.post("/api/workflows", {"workflow_type": "five"}, token=secret).status == 201

    command = WorkflowCommand.objects.get()
    assert (command.principal_type, command.principal_id) == ("token", "the billing team")


# -- the development token ---------------------------------------------------------------------------------------------


def test_opens_everything_to_the_development_token(api: ApiClient) -> None:
    assert status(api, TOKEN) == 200
    assert api.post("/api/worker/heartbeat", {"worker_id": "w"}, token=TOKEN).body["reason"] == "worker_not_registered"


def test_has_no_development_token_unless_one_is_set(api: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "DURABLE_DEV_TOKEN", "")
    forget_cached_access()

    assert (status(api, TOKEN), status(api, ""), status(api, None)) == (401, 401, 401)
