"""Routes of the worker plane, below `/api/worker/`. Task ids come unencoded; worker ids may hold any character."""

from __future__ import annotations

from django.urls import path

from worker_api.views import activity_tasks, polls, workers, workflow_tasks

urlpatterns = [
    path("register", workers.RegisterView.as_view()),
    path("heartbeat", workers.WorkerHeartbeatView.as_view()),
    path("registrations/<path:worker_id>/deregister", workers.FencedDeregisterView.as_view()),
    path("registrations/<path:worker_id>", workers.DeregisterView.as_view()),
    path("workflow-tasks/poll", polls.WorkflowPollView.as_view()),
    path("workflow-tasks/<str:task_id>/complete", workflow_tasks.CompleteView.as_view()),
    path(
        "workflow-tasks/<str:task_id>/cancellation-scopes/checkpoint",
        workflow_tasks.CheckpointView.as_view(),
    ),
    path("workflow-tasks/<str:task_id>/fail", workflow_tasks.FailView.as_view()),
    path("workflow-tasks/<str:task_id>/heartbeat", workflow_tasks.HeartbeatView.as_view()),
    path("workflow-tasks/<str:task_id>/history", workflow_tasks.HistoryView.as_view()),
    path("activity-tasks/poll", polls.ActivityPollView.as_view()),
    path("activity-tasks/<str:task_id>/complete", activity_tasks.CompleteView.as_view()),
    path("activity-tasks/<str:task_id>/fail", activity_tasks.FailView.as_view()),
    path("activity-tasks/<str:task_id>/heartbeat", activity_tasks.HeartbeatView.as_view()),
    path("activity-tasks/<str:task_id>/renew-lease", activity_tasks.RenewLeaseView.as_view()),
    path("activity-tasks/<str:task_id>/status", activity_tasks.StatusView.as_view()),
]
