"""Where runs execute: one file per place, and the one function that chooses between them."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Protocol

from mammoth_sbs.errors import UserError

if TYPE_CHECKING:
    from mammoth_sbs.experiments.runs import Run
    from mammoth_sbs.experiments.store import Store


class Executor(Protocol):
    """Where runs are executed."""

    slots: int  # runs at a time

    def call(self, function: Any, *args: Any) -> Any:
        """One call there."""

    def run(self, runs: list[Run], store: Store) -> Generator[tuple[Run, Any], None, None]:
        """Execute all, and give each with its result or `Failure` as it ends."""


def get_executor(threads: int, jobs: int | None = None, ray: str | None = None,
                 gpus_per_run: float | None = None) -> Executor:
    """The Ray cluster at the address `ray`, or this machine with `jobs` runs at a time."""
    if gpus_per_run is not None and ray is None:
        raise UserError("--gpus-per-run is for a cluster: give --ray too, or leave it out")
    if ray is not None:
        if jobs is not None:
            raise UserError("--jobs is for runs on this machine; with --ray the cluster's CPUs and GPUs decide")
        from mammoth_sbs.experiments.executors.cluster import Cluster

        return Cluster(ray, threads, gpus_per_run or 0.0)
    from mammoth_sbs.experiments.executors.local import Local

    local = Local(jobs or 0, threads)  # begins to import, while we do too
    if jobs is None:
        import torch

        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        local.slots = 1 if torch.cuda.is_available() else max(1, cores // threads)
    return local
