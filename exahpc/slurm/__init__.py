"""Slurm: submit, query, requeue, cancel; and what a process can know of the job it runs in."""

from exahpc.slurm.choose import choose as choose
from exahpc.slurm.features import has_requeue_exit as has_requeue_exit

__all__ = ["choose", "has_requeue_exit"]
