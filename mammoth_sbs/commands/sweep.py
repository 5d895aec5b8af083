"""`mammoth-sbs sweep CONFIG.yaml`: execute the runs of a grid that are not finished yet."""

from __future__ import annotations

from pathlib import Path

from mammoth_sbs import host
from mammoth_sbs.commands import Parser
from mammoth_sbs.errors import Interrupted
from mammoth_sbs.experiments.config import Flag, read_config
from mammoth_sbs.experiments.executors import get_executor
from mammoth_sbs.experiments.store import Store
from mammoth_sbs.files import shipped
from mammoth_sbs.values import at_least, number, path, text


def parser() -> Parser:
    it = Parser(prog="mammoth-sbs sweep",
                description="Execute the runs of a grid. What is finished is skipped: start it again after "
                            "whatever happened, or with more seeds.")
    add = it.add_argument
    add("config", type=path, metavar="CONFIG.yaml", help="base command line, grid and seeds; may be one that "
                                                             "`mammoth-sbs configs` lists")
    add("--results", type=path, metavar="DIR", help="one JSON file per finished run (default: results/<name>)")
    add("--base_path", type=text, metavar="DIR", help="where the data sets are, instead of what the config says")
    add("--dry-run", action="store_true", help="list the runs and the expected time")
    add("--jobs", type=at_least(1),
        help="runs at a time (default: one per CPU core, divided by the config's `threads`; 1 if there is a GPU)")
    add("--no-share", action="store_true", help="train the first task anew in every run; the numbers are the same")
    add("--accept-version", type=text, action="append", default=[], metavar="VERSION",
        help="count results of this other code as finished; may be given again")
    add("--ray", type=text, metavar="ADDRESS",
        help="execute on the Ray cluster that this machine is in: host:port, or auto")
    add("--gpus-per-run", type=number(0), metavar="X", help="with --ray: GPUs of a run, may be a fraction (default: 0)")
    return it


def main(argv: list[str]) -> None:
    """Execute what is not finished, or with `--dry-run` say what that is."""
    args = parser().parse_args(argv)
    if host.root() != host.EMBEDDED:
        host.check(host.root())
    ours = shipped(args.config)
    config = read_config(ours if ours.is_file() and not args.config.exists() else args.config)
    if args.base_path is not None:
        for point in config.points:
            point.flags["--base_path"] = Flag((args.base_path,), config.base_line)
    store = Store(args.results or Path("results") / config.name)
    try:
        executor = get_executor(config.threads, args.jobs, args.ray, args.gpus_per_run)
        from mammoth_sbs.experiments.sweep import sweep  # imports torch, while the executor's server does too

        sweep(config, store, executor, args.accept_version, args.no_share, args.dry_run)
    except KeyboardInterrupt as e:
        raise Interrupted("; the same command goes on from here", e) from None
