"""The result folder: one JSON file per finished run, written whole or not at all, and one sweep at a time.

A folder `results/NAME` can be packed into the file `results/NAME.jsonl` beside it; what is read are both.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import mammoth_sbs
from mammoth_sbs import host
from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments.schema import check
from mammoth_sbs.files import clean, try_to_write, write_atomically, write_somewhere
from mammoth_sbs.values import Unfit

NOT_IN_A_RUN = ("commands", "configs", "examples", "experiments", "figures", "host/doctor.py", "moved.py",
                "__main__.py", "avalanche.py")  # no run executes it
OF_MAMMOTH = ("host/real.py", "host/networks.py", "models/wrapped.py")  # executed on a user's own Mammoth only
SAME_NUMBERS = Path(__file__).with_name("versions.txt")
FIRST_FLAGS = frozenset({  # of version 0.1: always part of what a run is
    "align_bn", "alpha", "as_paper", "backbone", "batch_size", "beta", "buffer_size", "constr_eta",
    "constr_margin", "dataset", "dataset_config", "debug_mode", "dp_weight", "drop_last", "future_constraint",
    "gamma", "joint", "lambd", "loadcheck", "lr", "lr_milestones", "lr_scheduler", "max_classes",
    "minibatch_size", "mlp_hidden_size", "model", "model_config", "n_epochs", "n_tasks", "num_filters",
    "optim_mom", "optim_nesterov", "optim_wd", "optimizer", "past_constraint", "permute_classes", "sampler",
    "sbs_during", "sbs_grid", "sbs_q", "sbs_s", "sbs_scope", "sbs_score", "sbs_tune", "sbs_tune_epochs",
    "sched_multistep_lr_gamma", "seed", "simclr_batch_size", "simclr_num_aug", "simclr_temp", "start_from",
    "stop_after", "train_per_class", "validation"})
LOCK, FIRST_TASKS = ".lock", ".first_tasks"
WAIT_FOR_LOCK = 3.0  # seconds: the workers of a sweep that was killed a moment ago may still be dying


def named(args: dict[str, Any]) -> dict[str, Any]:
    """What a run is known by. A flag that came later counts when it is on, so that ids stay when flags come."""
    return {key: value for key, value in args.items() if key in FIRST_FLAGS or value not in (None, False, 0, "", [])}


@cache
def version() -> str:
    """Names the code that makes the numbers: a digest of the files that a run executes, the release of torch, and on a
    user's own Mammoth the commit of that."""
    import torch

    elsewhere = host.root() != host.EMBEDDED
    aside = NOT_IN_A_RUN if elsewhere else NOT_IN_A_RUN + OF_MAMMOTH
    root = Path(mammoth_sbs.__file__).resolve().parent
    content = hashlib.sha256()
    for file in sorted(root.rglob("*")):
        inside = file.relative_to(root).as_posix()
        if file.suffix in (".py", ".yaml") and not inside.startswith(aside):
            content.update(f"{inside}\0".encode() + file.read_bytes() + b"\0")
    mammoth = f"-mammoth-{host.commit(host.root())}" if elsewhere else ""
    return f"{content.hexdigest()[:12]}-torch{torch.__version__.split('+')[0]}{mammoth}"


@cache
def canonical(name: str) -> str:
    """The oldest version that gives the same numbers, by `versions.txt`; a version that is not listed is its own."""
    code, _, torch = name.partition("-")
    for line in SAME_NUMBERS.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#") and code in line.split():
            return f"{line.split()[0]}-{torch}"
    return name


def packed(folder: Path) -> Path:
    """The one file that a result folder can be packed into; it stands beside the folder."""
    return Path(f"{folder}.jsonl")


def is_results(path: Path) -> bool:
    """Whether runs can be read from there: a folder, a packed one, or both."""
    return path.is_dir() or packed(path).is_file() or (path.suffix == ".jsonl" and path.is_file())


def read_results(folder: Path, accept: Collection[str] | None = None) -> dict[str, dict[str, Any]]:
    """All finished runs of a folder and of the file it was packed into, by their id.

    Runs of different code are never handed out together unasked. `accept`: the versions that may be there, and those
    that give the same numbers; without it, any one.
    """
    records = read_all(folder)
    check_versions(folder, records, accept)
    return records


def check_versions(folder: Path | str, records: dict[str, dict[str, Any]], accept: Collection[str] | None) -> None:
    """One line for runs of code that is not accepted, with all flags that would accept them."""
    found = Counter(record["version"] for record in records.values())
    known = {canonical(name) for name in accept or ()}
    foreign = {canonical(name): name for name in found if canonical(name) not in known}
    if foreign and (accept or len(foreign) > 1):
        counts = ", ".join(f"{n} of {name}" for name, n in found.items())
        here = f" (this is {version()})" if accept and version() in accept else ""
        accepting = " ".join(f"--accept-version {name}" for name in foreign.values())
        raise UserError(f"{folder}: holds results of other code: {counts}{here}. Give {accepting} to count them as "
                        "equal, or use another folder")


def read_all(folder: Path) -> dict[str, dict[str, Any]]:
    """The runs of the folder, those of its packed file, or of a packed file that is given itself; of whatever code."""
    alone = folder.suffix == ".jsonl" and folder.is_file()
    records: dict[str, dict[str, Any]] = {}
    file = folder if alone else packed(folder)
    if file.is_file():
        for number, line in enumerate(_text(file).rstrip("\n").split("\n"), 1):
            record = _checked(line, f"{file}, line {number}")
            if differ(records.setdefault(record["id"], record)["results"], record["results"]):
                raise UserError(f"{file}, line {number}: the file has the same run with other results; take one out")
    for file in () if alone else sorted(folder.glob("*.json")):
        if re.fullmatch(r"[0-9a-f]{16}", file.stem):
            record = _checked(_text(file), str(file))
            if record["id"] != file.stem:
                raise UserError(f"{file}: holds run {record['id']}; give it back that name, or move it away")
            if differ(records.setdefault(file.stem, record)["results"], record["results"]):
                raise UserError(f"{file}: {packed(folder)} has the same run with other results; move one away")
    return records


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        raise UserError(f"{file}: {getattr(e, 'strerror', None) or 'not JSON'}; move it away") from None


def _checked(text: str, where: str) -> dict[str, Any]:
    """A run, if it is one."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError(f"{where}: not JSON; move it away") from None
    try:
        check(record)
    except Unfit as e:
        raise UserError(f"{where}: not the result of a run: {e}; move it away") from None
    return record


def differ(a: Any, b: Any) -> bool:
    """Whether two results of one run contradict each other; one may know more metrics than the other."""
    if isinstance(a, dict) and isinstance(b, dict):
        return any(differ(a[key], b[key]) for key in a.keys() & b.keys())
    return a != b


def _pop_seconds(result: dict[str, Any]) -> list[list[float]]:
    """How long each pair took that was tried for q and s: a list for each task that chose, taken out of the result."""
    choices = [task["choice"] for task in result.get("sbs", {}).get("tasks", ()) if task.get("choice")]
    for choice in choices:
        choice["points"] = [dict(point) for point in choice["points"]]  # tasks may share them
    return [[point.pop("seconds") for point in choice["points"]] for choice in choices]


class Store:
    """Writes into a result folder that it has for itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.first_tasks = folder / FIRST_TASKS
        self.lock = -1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other sweeps out. The lock is the process's, so that even `kill -9` gives it back."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as e:
            raise UserError(f"--results {self.folder}: cannot be written: {e.strerror}; give another folder") from None
        self.lock = lock
        try:
            self._lock(lock)
            for folder in (self.folder, self.first_tasks):  # what a sweep that was killed left behind
                clean(folder)
            try_to_write(self.folder / "a.json", "results", "--results", 1_000_000)
            yield
        finally:
            os.close(lock)
            self.lock = -1

    def _lock(self, lock: int) -> None:
        until = time.monotonic() + WAIT_FOR_LOCK
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise UserError(f"--results {self.folder}: another sweep is writing there; wait for it, "
                                    "or give another folder") from None
                time.sleep(0.1)
            except OSError as e:
                raise UserError(f"--results {self.folder}: cannot be locked: {e.strerror}; "
                                "give a folder on another disk") from None

    def check(self) -> None:
        """Whether the folder is still the one that was locked."""
        try:
            if self.lock < 0 or os.path.samestat(os.fstat(self.lock), os.stat(self.folder / LOCK)):
                return
        except FileNotFoundError:
            pass
        self.forget_first_tasks()  # a worker may have made the folder anew for them
        with suppress(OSError):
            self.folder.rmdir()
        raise UserError(f"--results {self.folder}: was removed while the sweep was running, and with it the finished "
                        "runs; start it again to make them anew")

    def remove_if_empty(self) -> None:
        """A folder whose runs are packed is left only if something else is in it."""
        if not [file for file in self.folder.iterdir() if file.name != LOCK]:
            shutil.rmtree(self.folder)

    def log(self, run_id: str) -> Path:
        """What a run said; it stays only if the run fails."""
        return self.folder / f"{run_id}.log"

    def save(self, run_id: str, command: str, args: dict[str, Any], threads: int, result: dict[str, Any],
             record: str | None = None) -> None:
        """The run's file. What may differ when the same run is made again stands under `volatile`.

        Its record, if it has one, is written first: a finished run has both.
        """
        self.check()
        self.log(run_id).unlink(missing_ok=True)  # before the rest, as it gives room
        result = {key: value for key, value in result.items() if key not in ("command", "args", "seed")}
        if record is not None:
            content = result.pop("record")
            self._write(self.folder / record, content, "record")
            result["sbs_record"] = record
        volatile = {key: result.pop(key) for key in ("commit", "versions", "wall_time", "cpu_time", "node")}
        if seconds := _pop_seconds(result):
            volatile["seconds"] = seconds
        volatile |= {"command": command, "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        whole = {"id": run_id, "version": version(), "args": args, "threads": threads, "seed": args["seed"],
                 **result, "volatile": volatile}
        text = json.dumps(whole, indent=1)
        self._write(self.folder / f"{run_id}.json", text.encode(), "result file")

    def _write(self, path: Path, content: bytes, what: str) -> None:
        """What a run has given, if need be elsewhere; then the sweep ends, for the next would fare no better."""
        elsewhere = write_somewhere(path, lambda f: f.write(content), what)[1]
        if elsewhere:
            raise UserError(f"{elsewhere}; move it there, make room, and start the same sweep again")

    def pack(self) -> Path:
        """All runs in one file, a line each in the order of their ids, and none in the folder any more."""
        records = read_all(self.folder)
        if not records:
            raise UserError(f"{self.folder}: holds no finished run; give a folder that `mammoth-sbs sweep` has written")
        lines = "".join(f"{json.dumps(records[run_id])}\n" for run_id in sorted(records))
        write_atomically(packed(self.folder), lambda f: f.write(lines.encode()), "packed results")
        for run_id in records:
            (self.folder / f"{run_id}.json").unlink(missing_ok=True)
        return packed(self.folder)

    def forget_first_tasks(self) -> None:
        """They take room, and all that needed them is done."""
        shutil.rmtree(self.first_tasks, ignore_errors=True)
