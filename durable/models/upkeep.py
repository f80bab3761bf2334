"""Upkeep's own rows: who leads, and how each duty's last pass went."""

from __future__ import annotations

from django.db import models


class UpkeepLeader(models.Model):
    """The process that runs the duties only one may run. One row; the database decides who holds it and until when."""

    name = models.CharField(max_length=32, primary_key=True)
    holder = models.CharField(max_length=128)
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return str(self.holder)


class UpkeepPass(models.Model):
    """The last pass of one duty, for operators and for `/api/ready`."""

    duty = models.CharField(max_length=64, primary_key=True)
    last_run_at = models.DateTimeField()
    last_success_at = models.DateTimeField(null=True)
    handled_count = models.PositiveIntegerField(default=0)
    failed_count = models.PositiveIntegerField(default=0)
    # Class name of the last error, never its text: that may quote a payload.
    last_error = models.CharField(max_length=255, blank=True, default="")

    class Meta:
        verbose_name_plural = "upkeep passes"

    def __str__(self) -> str:
        return str(self.duty)
