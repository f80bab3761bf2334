"""Counters and gauges of this process, in Prometheus form. Labels are bounded: never an id, never a payload."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

POLLS = Counter("durable_polls", "Polls answered.", ("kind", "outcome"))
PARKED_POLLS = Gauge("durable_parked_polls", "Polls waiting for work in this process.")
CLAIMS = Counter("durable_claims", "Tasks leased.", ("kind",))
CLAIM_TRANSACTIONS = Counter("durable_claim_transactions", "Polls that opened a locking claim transaction.", ("kind",))
CARRIED_POLLS = Counter(
    "durable_carried_polls",
    "Carried polls of recorded completions, by capability; `reason` says why one was refused.",
    ("capability", "outcome", "reason"),
)
INLINE_TASKS = Counter("durable_inline_tasks", "Tasks asked for with a completion's answer.", ("outcome",))
COMPLETIONS = Counter("durable_completions", "Reports recorded.", ("kind", "outcome"))
REFUSALS = Counter("durable_refusals", "Requests refused, by reason.", ("reason",))
UNCOUNTED_REFUSED_REPORTS = Counter("durable_refused_reports_dropped", "Refused reports that were not kept as rows.")
FAULTS = Counter("durable_faults", "Requests that ended in an unexpected error.")
STATEMENTS = Counter("durable_sql_statements", "Statements executed by the database pool.")
COMMITS = Counter("durable_sql_commits", "Write transactions committed by operations.")
TRANSACTION_RETRIES = Counter("durable_sql_transaction_retries", "Transactions run again after lock pressure.")
POOL_WAIT = Histogram(
    "durable_pool_wait_seconds",
    "How long requests waited for a database thread.",
    buckets=(0.001, 0.005, 0.025, 0.1, 0.5, 2.5),
)
REQUESTS = Counter("durable_http_requests", "Requests answered.", ("route", "method", "status"))
WAKEUPS = Counter("durable_wakeups", "Hints received, by where they came from.", ("source",))
LISTENER_CONNECTED = Gauge("durable_listener_connected", "1 while this process hears other processes' hints.")
UPKEEP_HANDLED = Counter("durable_upkeep_handled", "Items that upkeep duties handled.", ("duty",))
UPKEEP_FAILED = Counter("durable_upkeep_failed", "Items that upkeep duties could not handle.", ("duty",))
UPKEEP_LAST_PASS = Gauge("durable_upkeep_last_pass_timestamp_seconds", "When a duty last ran here.", ("duty",))
