"""The result folder: one JSON file per finished run, written whole or not at all, and one sweep at a time."""

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
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import mammoth_sbs
from mammoth_sbs.errors import UserError
from mammoth_sbs.files import write_atomically

NOT_IN_A_RUN = {"experiments", "figures", "cli.py", "doctor.py"}  # code that no run executes
LOCK, FIRST_TASKS = ".lock", ".first_tasks"
WAIT_FOR_LOCK = 3.0  # seconds: the workers of a sweep that was killed a moment ago may still be dying


def digest(value: Any) -> str:
    """A short name for something that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@cache
def version() -> str:
    """Names the code that makes the numbers: a digest of the files that a run executes, and the release of torch."""
    import torch

    root = Path(mammoth_sbs.__file__).resolve().parent
    content = hashlib.sha256()
    for file in sorted(root.rglob("*")):
        inside = file.relative_to(root)
        if file.suffix in (".py", ".yaml") and inside.parts[0] not in NOT_IN_A_RUN:
            content.update(f"{inside.as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return f"{content.hexdigest()[:12]}-torch{torch.__version__.split('+')[0]}"


def read_results(folder: Path, accept: Collection[str] | None = None) -> dict[str, dict[str, Any]]:
    """All finished runs of a folder by their id. Runs of different code are never handed out together unasked.

    `accept`: the versions that may be there; without it, any one.
    """
    records = {}
    for file in sorted(folder.glob("*.json")):
        if re.fullmatch(r"[0-9a-f]{16}", file.stem):
            try:
                record = json.loads(file.read_text())
            except (OSError, ValueError) as e:
                raise UserError(f"{file}: {getattr(e, 'strerror', None) or 'not JSON'}; move it away") from None
            if not isinstance(record, dict) or not record.keys() >= {"version", "args", "results", "volatile"}:
                raise UserError(f"{file}: not the result of a run; move it away")
            records[file.stem] = record
    found = Counter(record["version"] for record in records.values())
    if accept is None:
        accept = list(found)[:1]
    foreign = [name for name in found if name not in accept]
    if foreign:
        counts = ", ".join(f"{n} of {name}" for name, n in found.items())
        here = f" (this is {version()})" if version() in accept else ""
        accepting = " ".join(f"--accept-version {name}" for name in foreign)
        raise UserError(f"{folder}: holds results of other code: {counts}{here}. Give {accepting} to count them as "
                        "equal, or use another folder")
    return records


class Store:
    """Writes into a result folder that it has for itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.first_tasks = folder / FIRST_TASKS

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other sweeps out. The lock is the process's, so that even `kill -9` gives it back."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as e:
            raise UserError(f"--results {self.folder}: cannot be written: {e.strerror}; give another folder") from None
        try:
            self._lock(lock)
            self._clean()
            yield
        finally:
            os.close(lock)

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

    def _clean(self) -> None:
        """Remove what a sweep that was killed while writing left behind."""
        for pattern in (".*.json.*", f"{FIRST_TASKS}/.*"):
            for file in self.folder.glob(pattern):
                file.unlink(missing_ok=True)

    def log(self, run_id: str) -> Path:
        """What a run said; it stays only if the run fails."""
        return self.folder / f"{run_id}.log"

    def save(self, run_id: str, command: str, args: dict[str, Any], threads: int, result: dict[str, Any]) -> None:
        """The run's file. What may differ when the same run is made again stands under `volatile`."""
        result = {key: value for key, value in result.items() if key not in ("command", "args", "seed")}
        volatile = {key: result.pop(key) for key in ("commit", "versions", "wall_time", "cpu_time", "node")}
        volatile |= {"command": command, "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        record = {"id": run_id, "version": version(), "args": args, "threads": threads, "seed": args["seed"],
                  **result, "volatile": volatile}
        text = json.dumps(record, indent=1)
        write_atomically(self.folder / f"{run_id}.json", lambda f: f.write(text.encode()), "result file")
        self.log(run_id).unlink(missing_ok=True)

    def forget_first_tasks(self) -> None:
        """They take room, and all that needed them is done."""
        shutil.rmtree(self.first_tasks, ignore_errors=True)
