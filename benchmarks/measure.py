"""Readings before and after a run: CPU time from /proc, and the server's own counters from its metrics page."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
_PACKAGES = (
    "django",
    "djangorestframework",
    "uvicorn",
    "httptools",
    "uvloop",
    "psycopg",
    "mysqlclient",
    "durable-workflow",
    "httpx",
    "sniffio",  # without it, httpcore looks for it in vain at each of its locks: about a sixth of the SDK's CPU time
)


# CPU time


def process_name(pid: int) -> str | None:
    """The command name of a process, None when it is not visible."""
    try:
        return (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return None


def processes_named(*names: str) -> list[int]:
    return sorted(pid for pid in _pids() if process_name(pid) in names)


def tree_cpu_seconds(roots: Iterable[int]) -> float:
    """CPU time used so far by these processes and all their descendants, those that have ended included.

    A process that ended counts once its parent has waited for it. The resolution is one clock tick (10 ms) a process.
    """
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for pid in _pids():
        try:
            fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[pid] = int(fields[1])
        ticks[pid] = sum(int(value) for value in fields[11:15])  # utime, stime, cutime, cstime
    wanted = set(roots)
    is_growing = True
    while is_growing:
        found = {pid for pid, parent in parents.items() if parent in wanted} - wanted
        wanted |= found
        is_growing = bool(found)
    return sum(ticks.get(pid, 0) for pid in wanted) / _TICKS_PER_SECOND


def machine_busy_seconds() -> float:
    """CPU time the whole machine has spent on anything but idling and waiting for disks, since it started."""
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(
        int, (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / _TICKS_PER_SECOND


def file_system_of(path: Path) -> str:
    """The type of the file system this path is on, e.g. `ext4` or `tmpfs`."""
    best, kind = -1, "unknown"
    resolved = path.resolve()
    for line in (_PROC / "mounts").read_text().splitlines():
        _, mount, type_, *_ = line.split()
        if resolved.is_relative_to(mount) and len(mount) > best:
            best, kind = len(mount), type_
    return kind


def machine_facts() -> dict[str, str]:
    """What a reader needs to compare these numbers with others."""
    models = [line for line in (_PROC / "cpuinfo").read_text().splitlines() if line.startswith("model name")]
    facts = {
        "cpus": str(len(os.sched_getaffinity(0))),
        "cpu": models[0].partition(":")[2].strip() if models else platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average_1m": f"{os.getloadavg()[0]:.2f}",
    }
    for package in _PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir(_PROC) if entry.isdigit()]


# The server's counters


@dataclass(frozen=True, slots=True)
class Counters:
    """Counter values by metric name and labels."""

    values: Mapping[str, Mapping[Labels, float]]

    @classmethod
    def from_text(cls, text: str) -> Counters:
        """Read a page in Prometheus' text format; what is not one of the server's own counters is left out."""
        values: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith("durable_") and sample.name.endswith("_total"):
                    values.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
        return cls(values)

    def since(self, before: Counters) -> Counters:
        """The increase of every counter; one that did not exist before started at 0."""
        return Counters(
            {
                name: {labels: value - before.values.get(name, {}).get(labels, 0.0) for labels, value in series.items()}
                for name, series in self.values.items()
            }
        )

    def total(self, name: str, keep: Callable[[Mapping[str, str]], bool] | None = None) -> float | None:
        """The sum over all label sets (that pass the test), None when the server has no such counter."""
        if name not in self.values:
            return None
        return sum(value for labels, value in self.values[name].items() if keep is None or keep(dict(labels)))

    def by(
        self, name: str, *label_names: str, keep: Callable[[Mapping[str, str]], bool] | None = None
    ) -> dict[str, float] | None:
        """Sums by the values of these labels, joined by a space; zeroes are left out. None without such a counter."""
        if name not in self.values:
            return None
        sums: dict[str, float] = {}
        for labels, value in self.values[name].items():
            named = dict(labels)
            if keep is None or keep(named):
                key = " ".join(named.get(label, "-") for label in label_names)
                sums[key] = sums.get(key, 0.0) + value
        return {key: value for key, value in sorted(sums.items()) if value}
