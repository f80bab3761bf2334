"""It lets nobody in with the wrong token, role or namespace, in words the published SDK understands."""

from __future__ import annotations

from typing import Any

import pytest
from durable_workflow import Client, NamespaceNotFound, RuntimeDiscoveryUnavailable, ServerError, Unauthorized, Worker

from durable.models import Namespace, Run, WorkerRegistration
from tests.sdk.session import QUEUE, SdkSession
from tests.sdk.workflows import FIVE_RESULTS, Five, step
from wire.tokens import create_token


def secret(*roles: str, namespaces: list[str] | None = None) -> str:
    """The secret of a new token with these roles."""
    return create_token("-".join(roles), roles=roles, namespaces=namespaces or ["default"])[1]


def start_with(sdk: SdkSession, client: Client) -> Any:
    return sdk.run(client.start_workflow(workflow_type="five", workflow_id="five-1", task_queue=QUEUE, input=[]))


def work_with(sdk: SdkSession, client: Client) -> None:
    """Run a worker until it gives up."""

    async def work() -> None:
        await Worker(client, task_queue=QUEUE, workflows=[Five], activities=[step]).run()

    sdk.run(work())


def test_refuses_a_client_with_an_unknown_token(sdk: SdkSession) -> None:
    sdk.start("five", workflow_id="five-1")

    with pytest.raises(Unauthorized):
        sdk.run(sdk.new_client(token="wrong").describe_workflow("five-1"))


@pytest.mark.parametrize("attempt", [start_with, work_with])
def test_refuses_discovery_with_an_unknown_token(sdk: SdkSession, attempt: Any) -> None:
    """Starts and workers look at the discovery document first, and wrap what it says in an error of their own."""
    with pytest.raises((RuntimeDiscoveryUnavailable, RuntimeError)) as refused:
        attempt(sdk, sdk.new_client(token="wrong"))

    assert isinstance(refused.value.__cause__, Unauthorized)
    assert not Run.objects.exists()
    assert not WorkerRegistration.objects.exists()


def test_refuses_a_start_by_a_worker_s_token(sdk: SdkSession) -> None:
    with pytest.raises(ServerError) as refused:
        start_with(sdk, sdk.new_client(token=secret("worker")))

    assert (refused.value.status, refused.value.reason()) == (403, "forbidden")
    assert not Run.objects.exists()


def test_refuses_a_worker_with_an_operator_s_token(sdk: SdkSession) -> None:
    with pytest.raises(ServerError) as refused:
        work_with(sdk, sdk.new_client(token=secret("operator")))

    assert (refused.value.status, refused.value.reason()) == (403, "forbidden")
    assert not WorkerRegistration.objects.exists()


def test_serves_a_client_that_uses_one_token_for_each_plane(sdk: SdkSession) -> None:
    client = sdk.new_client(token=None, control_token=secret("operator"), worker_token=secret("worker"))

    with sdk.worker(client=client, workflows=[Five], activities=[step]):
        result = sdk.result(start_with(sdk, client))

    assert result == FIVE_RESULTS


def test_refuses_a_namespace_that_is_not_there(sdk: SdkSession) -> None:
    with pytest.raises(NamespaceNotFound):
        start_with(sdk, sdk.new_client(namespace="nowhere"))


@pytest.mark.parametrize("attempt", [start_with, work_with])
def test_refuses_a_namespace_that_the_token_may_not_use(sdk: SdkSession, attempt: Any) -> None:
    Namespace.objects.create(name="theirs")
    token = secret("operator", "worker", namespaces=["default"])

    with pytest.raises(NamespaceNotFound):
        attempt(sdk, sdk.new_client(token=token, namespace="theirs"))

    assert not Run.objects.exists()


def test_keeps_the_work_of_one_namespace_from_the_workers_of_another(sdk: SdkSession) -> None:
    Namespace.objects.create(name="theirs")
    theirs = sdk.new_client(namespace="theirs")
    handle = start_with(sdk, theirs)

    with sdk.worker(workflows=[Five], activities=[step]):
        ours = sdk.start("five")
        sdk.result(ours)
        untouched = Run.objects.get(id=handle.run_id).status
    with sdk.worker(client=theirs, workflows=[Five], activities=[step]):
        result = sdk.result(handle)

    assert untouched == "pending"
    assert result == FIVE_RESULTS
