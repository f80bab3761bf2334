"""The admin console: every table of the engine, read-only, one model a file."""

from __future__ import annotations

from django.contrib import admin

from dashboard.admin import (  # noqa: F401 each registers its model
    activity_attempt,
    activity_execution,
    api_token,
    checkpoint_receipt,
    completion_receipt,
    failure,
    history_event,
    namespace,
    poll_receipt,
    refused_report,
    run,
    task,
    timer,
    upkeep_leader,
    upkeep_pass,
    worker_incarnation,
    worker_registration,
    workflow,
    workflow_command,
)

admin.site.site_header = "Durable"
admin.site.site_title = "Durable"
admin.site.index_title = "Tables"
