"""Routes of the control plane and of discovery, below `/api/`."""

from __future__ import annotations

from django.urls import path, re_path

from control_api.views import discovery, workflows

urlpatterns = [
    path("health", discovery.HealthView.as_view()),
    path("ready", discovery.ReadyView.as_view()),
    path("cluster/info", discovery.ClusterInfoView.as_view()),
    path("workflows", workflows.WorkflowsView.as_view()),
    path("workflows/<str:workflow_id>", workflows.DescribeView.as_view()),
    path("workflows/<str:workflow_id>/runs", workflows.RunsView.as_view()),
    path("workflows/<str:workflow_id>/cancel", workflows.CancelView.as_view()),
    path("workflows/<str:workflow_id>/terminate", workflows.TerminateView.as_view()),
    path("workflows/<str:workflow_id>/repair", workflows.RepairView.as_view()),
    path("workflows/<str:workflow_id>/runs/<str:run_id>", workflows.DescribeRunView.as_view()),
    path("workflows/<str:workflow_id>/runs/<str:run_id>/history", workflows.HistoryView.as_view()),
    path("workflows/<str:workflow_id>/runs/<str:run_id>/cancel", workflows.CancelRunView.as_view()),
    path("workflows/<str:workflow_id>/runs/<str:run_id>/terminate", workflows.TerminateRunView.as_view()),
    re_path(r"^worker(/[\s\S]*)?\Z", discovery.UnknownWorkerRouteView.as_view()),
    re_path(r"^[\s\S]*\Z", discovery.UnknownRouteView.as_view()),
]
