"""The runs that a config asks for: each known by its resolved arguments."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mammoth_sbs import host
from mammoth_sbs.core.dynamics import DYNAMICS
from mammoth_sbs.core.streams import STREAM_SAMPLERS
from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments.config import Config, Flag, Point, words
from mammoth_sbs.experiments.schema import digest, id_of
from mammoth_sbs.experiments.store import Store, named, version
from mammoth_sbs.models import load_host
from mammoth_sbs.parser import program
from mammoth_sbs.result import NOT_OF_THE_FIRST_TASK, NOT_OF_THE_RUN

OF_EACH_RUN = ("--sbs-record", "--ckpt_name")  # files of a run: they must have a name of their own


@dataclass(frozen=True)
class Run:
    """One run: known by its resolved arguments, without paths and other things that do not change its numbers."""

    id: str
    point: Point
    args: dict[str, Any]
    base_path: str
    first_task: str | None  # the same for all runs that are the same up to the end of the first task
    record: str | None = None  # its --sbs-record, as seen from the result folder

    def words(self, more: dict[str, str] | None = None) -> list[str]:
        """Its command line; the data's folder in full, for a worker may stand elsewhere, and the record's without: it
        comes back with the result."""
        flags = {flag: [value.replace("{id}", self.id) for value in given.values]
                 for flag, given in self.point.flags.items()}
        if self.record:
            flags["--sbs-record"] = ["record.npz"]
        flags |= {"--seed": [str(self.args["seed"])], "--base_path": [str(Path(self.base_path).resolve())]}
        flags |= {flag: [value] for flag, value in (more or {}).items()}
        return [word for flag, values in flags.items() for word in (flag, *values)]

    @property
    def title(self) -> str:
        """What makes it different from the others."""
        varied = {flag: self.point.flags[flag] for flag in self.point.varied}
        return shlex.join([*words(varied), "--seed", str(self.args["seed"])])

    @property
    def command(self) -> str:
        """How to make it by hand."""
        given = [word.replace("{id}", self.id) for word in words(self.point.flags)]
        return f"{host.way_in()}{program()} " + shlex.join([*given, "--seed", str(self.args["seed"])])


def resolve(config: Config) -> list[Run]:
    """All runs, checked by the host's own reading of their command lines."""
    main = load_host()
    aside = NOT_OF_THE_RUN - {"loadcheck", "start_from", "stop_after"} | {"command"}
    of_the_host = {}
    if not host.is_embedded():  # a run there is another run, and workers change its order
        aside, of_the_host = aside - {"num_workers"} | main.OF_THE_START, {"host": "mammoth"}
    resolved = []
    for point in config.points:
        if not host.is_embedded():
            point.flags.setdefault("--num_workers", Flag(("0",), config.base_line))
        try:
            namespace = vars(main.parse_args([*words(point.flags), "--seed", "0"]))
        except UserError as e:
            raise config.blame(point.flags, str(e)) from None
        args = {key: value for key, value in namespace.items() if key not in aside}
        resolved.append((point, namespace, args | of_the_host))
    runs: dict[str, Run] = {}
    for seed in config.seeds:
        for point, namespace, args in resolved:
            args = named(args | {"seed": seed})
            after = NOT_OF_THE_FIRST_TASK - ({"sbs_score"} if args.get("sbs_score") in DYNAMICS else set())
            before = {key: value for key, value in args.items() if key not in after}
            # a stock method, or one that inserts at every step, has used its buffer in the first task
            streamed = args.get("sampler", "").replace("_", "-") in STREAM_SAMPLERS
            alike = args["model"].endswith("-sbs") and args.get("sbs_during", "closed") == "closed" and not streamed \
                and not (args["loadcheck"] or args["start_from"] or namespace["sbs_record"]) and host.is_embedded()
            run_id = id_of(args, config.threads)
            curve = [namespace[every] for every in ("eval_epochs", "eval_steps") if namespace.get(every)]  # on the way
            first_task = digest([before, config.threads, version(), *curve]) if alike else None
            record = (namespace.get("sbs_record") or "").replace("{id}", run_id) or None
            runs.setdefault(run_id, Run(run_id, point, args, namespace["base_path"], first_task, record))
    _no_common_files(config, list(runs.values()))
    return list(runs.values())


def _no_common_files(config: Config, runs: list[Run]) -> None:
    """Runs would overwrite each other's checkpoints and records."""
    for flags in (run.point.flags for run in runs if len(runs) > 1):
        for flag in OF_EACH_RUN:
            if flag in flags and not any("{id}" in value for value in flags[flag].values):
                raise config.blame(flags, f"{flag}: all runs would write the same file; put {{id}} into its name")


def share(runs: list[Run], store: Store) -> list[Run]:
    """Only a first task that several runs wait for, or that is there already, is worth a file."""
    users = Counter(run.first_task for run in runs)
    return [run if users[run.first_task] > 1 or (store.first_tasks / f"{run.first_task}.pt").exists()
            else replace(run, first_task=None) for run in runs]
