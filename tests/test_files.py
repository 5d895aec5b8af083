"""Files are whole or not there, places are tried before they are needed, and what killed processes leave goes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mammoth_sbs import files
from mammoth_sbs.errors import UserError
from mammoth_sbs.files import clean, partial_folder, try_to_write, write_atomically, write_somewhere
from tests.conftest import REPO


@pytest.fixture(autouse=True)
def nothing_cleaned_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_cleaned", set())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def hold(folder: Path, code: str) -> subprocess.Popen:
    """A process that has something unfinished in `folder`, and waits."""
    text = f"from mammoth_sbs.files import *; from time import sleep; folder = Path({str(folder)!r})\n"
    process = subprocess.Popen([sys.executable, "-c", text + code], cwd=REPO, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("code", [
    "write_atomically(folder / 'a', lambda f: (print('ready', flush=True), sleep(100)), 'file')",
    "with partial_folder(folder) as made: (made / 'x').write_text('half'); print('ready', flush=True); sleep(100)",
])
def test_what_a_killed_process_left_is_removed_and_what_a_living_one_makes_is_not(code: str, tmp_path: Path) -> None:
    process = hold(tmp_path, code)
    (left,) = tmp_path.iterdir()
    clean(tmp_path)
    assert left.exists()
    process.kill()
    process.wait()
    assert left.exists()
    write_atomically(tmp_path / "b", lambda f: f.write(b"whole"), "file")  # the next that writes there
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_only_our_own_leftovers_are_removed(tmp_path: Path) -> None:
    for name in (".partial-x", ".a.json.abc", "sbs-partial-y"):
        (tmp_path / name).write_text("somebody else's")
    target = tmp_path / "target"
    target.write_text("not to be followed")
    (tmp_path / ".sbs-partial-link").symlink_to(target)
    os.mkfifo(tmp_path / ".sbs-partial-pipe")
    clean(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {".partial-x", ".a.json.abc", "sbs-partial-y", "target"}


def test_an_unfinished_file_that_is_taken_away_before_its_lock_is_made_anew(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    make, made = tempfile.mkstemp, []

    def mkstemp(*args: Any, **kwargs: Any) -> tuple[int, str]:
        made.append(make(*args, **kwargs))
        if len(made) == 1:
            os.unlink(made[0][1])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkstemp", mkstemp)
    write_atomically(tmp_path / "a", lambda f: f.write(b"whole"), "file")
    assert len(made) == 2 and (tmp_path / "a").read_bytes() == b"whole"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OSError])
def test_nothing_is_left_of_a_write_that_failed(error: type[BaseException], tmp_path: Path) -> None:
    (tmp_path / "a").write_text("before")

    def fail(f: Any) -> None:
        f.write(b"half")
        raise error

    with pytest.raises((error, UserError)):
        write_atomically(tmp_path / "a", fail, "file")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "before")]


def test_a_full_disk_is_called_that_by_torch_too(small_disk: Path) -> None:
    with pytest.raises(UserError, match="cannot write the checkpoint .*: No space left on device; what was there"):
        write_atomically(small_disk / "a.pt", lambda f: torch.save({"a": torch.zeros(400_000)}, f), "checkpoint")
    assert not list(small_disk.iterdir())


def test_room_is_tried_for_before_it_is_needed(small_disk: Path) -> None:
    try_to_write(small_disk / "a.pt", "checkpoint", "--checkpoint_path", 900_000)
    with pytest.raises(UserError, match=r"No space left on device \(about 1.1 MB are needed\); see --checkpoint_path"):
        try_to_write(small_disk / "a.pt", "checkpoint", "--checkpoint_path", 1_100_000)
    assert not list(small_disk.iterdir())


def test_where_room_cannot_be_asked_for_a_byte_is_synchronised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some disks say that they are full only when a file is synchronised, and by then it must have something to say."""
    def full(descriptor: int) -> None:
        if os.fstat(descriptor).st_size:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="cannot write the checkpoint .*uota exceeded .*; see --ckpt_name"):
        try_to_write(tmp_path / "a.pt", "checkpoint", "--ckpt_name")
    assert not list(tmp_path.iterdir())


def test_names_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "folder").mkdir()
    for path, says in (("file/a.pt", "Not a directory"), ("folder", "Is a directory"),
                       ("x" * 300, "File name too long"), (f"{'x' * 300}/a.pt", "File name too long")):
        with pytest.raises(UserError, match=f"cannot write the checkpoint .*: {says}; see --ckpt_name"):
            try_to_write(tmp_path / path, "checkpoint", "--ckpt_name")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}
    assert (tmp_path / "file").read_text() == "not a folder"


def test_the_longest_name_that_is_allowed_works(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    try_to_write(path, "checkpoint", "--ckpt_name")
    write_atomically(path, lambda f: f.write(b"whole"), "checkpoint")
    assert path.read_bytes() == b"whole"


def test_work_is_saved_somewhere_when_its_place_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("a.json", "a-1.json"):
        place, line = write_somewhere(tmp_path / "file" / "a.json", lambda f: f.write(b"{}"), "result file")
        assert place == tmp_path / "here" / name and place.read_bytes() == b"{}"
        assert line == (f"cannot write the result file {tmp_path / 'file' / 'a.json'}: {os.strerror(errno.ENOTDIR)}; "
                        f"it is saved as {place}")
    assert write_somewhere(tmp_path / "b", lambda f: f.write(b"{}"), "x") == (tmp_path / "b", None)


def test_a_partial_folder_is_gone_at_the_end_and_not_before(tmp_path: Path) -> None:
    made = partial_folder(tmp_path)
    with made as folder:
        (folder / "a").write_text("x")
        child = os.fork()
        if not child:  # as a process does that lets go of what it inherited
            made.gen.close()  # type: ignore[attr-defined]
            os._exit(0)
        os.waitpid(child, 0)
        assert (folder / "a").exists()
    assert not list(tmp_path.iterdir())


def test_where_something_unfinished_goes_is_made_and_cleaned_first(tmp_path: Path) -> None:
    left = tmp_path / "new" / f"{files.PARTIAL}left"
    left.mkdir(parents=True)
    with partial_folder(tmp_path / "new") as folder:
        assert not left.exists() and folder.parent == tmp_path / "new"
    with partial_folder(tmp_path / "other" / "one") as folder:
        assert folder.parent == tmp_path / "other" / "one"


def test_a_disk_that_knows_no_locks_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def flock(handle: int, how: int) -> None:
        tries.append(how)
        assert len(tries) < 3, "it goes on trying"
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(files.fcntl, "flock", flock)
    write_atomically(tmp_path / "a", lambda f: f.write(b"whole"), "file")
    assert (tmp_path / "a").read_bytes() == b"whole" and len(list(tmp_path.iterdir())) == 1
