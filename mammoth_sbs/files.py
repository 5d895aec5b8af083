"""Files that are written whole or not at all; what is left of a killed process; those that come with the package."""

from __future__ import annotations

import copy
import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from mammoth_sbs.errors import UserError, not_a_signal, reason

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there, so nothing is removed either
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".sbs-partial-"  # how the names of all files and folders begin that are not finished
Write = Callable[[IO[bytes]], object]
_cleaned: set[Path] = set()  # by this process


# ---- unfinished files and folders: who makes one holds a lock on it, which ends with the process


def _take(folder: str | Path, is_folder: bool) -> tuple[int, Path]:
    """A new unfinished file or folder, open and locked."""
    while True:
        if is_folder:
            name = tempfile.mkdtemp(prefix=PARTIAL, dir=folder)
            try:
                handle = os.open(name, os.O_RDONLY) if fcntl else -1
            except FileNotFoundError:
                continue
        else:
            handle, name = tempfile.mkstemp(prefix=PARTIAL, dir=folder)
        if fcntl is None or _locked(handle, name):
            return handle, Path(name)
        os.close(handle)


def _locked(handle: int, name: str) -> bool:
    """Lock it, unless `clean` of another process was faster."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a disk that knows no locks: nobody will take it away either
        return True
    try:
        return os.path.samestat(os.fstat(handle), os.stat(name))
    except FileNotFoundError:
        return False


def clean(folder: str | Path) -> None:
    """Remove what killed processes left unfinished in `folder`, not what a living one is making."""
    with suppress(OSError):
        for entry in os.scandir(folder) if fcntl else ():
            if entry.name.startswith(PARTIAL):
                with suppress(OSError):  # somebody else's, or just finished
                    handle = os.open(entry.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
                    try:
                        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        if entry.is_dir(follow_symlinks=False):
                            shutil.rmtree(entry.path)
                        else:
                            os.unlink(entry.path)
                    finally:
                        os.close(handle)


def _enter(folder: Path) -> None:
    """Make the folder if need be; the first time, see what others left there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
    if folder not in _cleaned:
        _cleaned.add(folder)
        clean(folder)


@contextmanager
def partial_folder(inside: str | Path | None = None) -> Iterator[Path]:
    """A folder for something unfinished, `inside` another or where the system keeps such; at the end it is gone."""
    inside = Path(inside or tempfile.gettempdir())
    _enter(inside)
    handle, folder = _take(inside, is_folder=True)
    owner = os.getpid()
    try:
        yield folder
    finally:
        if os.getpid() == owner:  # not a process that was forked inside
            shutil.rmtree(folder, ignore_errors=True)
            if handle >= 0:
                os.close(handle)


# ---- files


def write_atomically(path: str | Path, write: Write, what: str) -> None:
    """Call `write` with an unfinished file beside `path`, then rename; on trouble the old file stays."""
    path = Path(path)
    try:
        _enter(path.parent)
        with _partial_file(path.parent) as (f, name):
            write(f)
            f.flush()
            os.fsync(f.fileno())
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
        with suppress(OSError):  # the new name too is to outlast a power cut
            _sync(path.parent)
    except (OSError, RuntimeError) as e:
        not_a_signal(e)
        raise UserError(f"cannot write the {what} {path}: {_reason(e)}; what was there before is untouched") from None


def write_somewhere(path: str | Path, write: Write, what: str) -> tuple[Path, str | None]:
    """As `write_atomically`, but work is worth more than its place: if need be, where else there is room.

    Returns where it is, and what to tell the user if that is not `path`.
    """
    path = Path(path)
    try:
        write_atomically(path, write, what)
        return path, None
    except UserError as e:
        for folder in (Path.cwd(), Path(tempfile.gettempdir()), Path.home()):
            with suppress(UserError, OSError):
                place = _free_name(folder / path.name)
                write_atomically(place, write, what)
                return place, f"{e.what}; it is saved as {place}"
        raise


def try_to_write(path: str | Path, what: str, see: str, size: int = 1) -> None:
    """Find out whether `size` bytes could be written to `path`, before hours are spent on them; leaves folders only."""
    path = Path(path)
    try:
        with suppress(FileNotFoundError):
            if path.lstat() and path.is_dir():  # a name that is too long is an error here
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        _enter(path.parent)
        with _partial_file(path.parent) as (f, _):
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(f.fileno(), 0, size)
            f.write(b"\0")
            f.flush()
            os.fsync(f.fileno())
    except OSError as e:
        full = e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        room = f" (about {size / 1e6:.1f} MB are needed)" if full else ""
        raise UserError(f"cannot write the {what} {path}: {_reason(e)}{room}; see {see}") from None


@contextmanager
def _partial_file(folder: Path) -> Iterator[tuple[IO[bytes], Path]]:
    handle, name = _take(folder, is_folder=False)
    try:
        with os.fdopen(handle, "wb") as f:
            yield f, name
    finally:
        with suppress(FileNotFoundError):
            name.unlink()


def _free_name(path: Path) -> Path:
    """`path`, with a number if something is there."""
    names = (path.with_name(f"{path.stem}{f'-{n}' * bool(n)}{path.suffix}") for n in range(1000))
    return next(name for name in names if not name.exists())


def _reason(e: BaseException) -> str:
    """What the system said, also where torch.save has turned it into an assertion of its own."""
    inner: BaseException | None = e
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        inner = inner.__cause__ or inner.__context__
    return reason(e)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def shipped(path: str | Path) -> Path:
    """A file or folder that comes with the package: inside it once installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    return package / path if (package / Path(path).parts[0]).exists() else package.parent / path


def read_yaml(file: Path) -> dict[str, Any]:
    """A configuration that comes with the package; read once, for every command line asks for some."""
    return copy.deepcopy(_parsed(file, file.stat().st_mtime_ns))


@cache
def _parsed(file: Path, _changed: int) -> dict[str, Any]:
    import yaml

    return yaml.safe_load(file.read_text(encoding="utf-8")) or {}


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def git(folder: Path, *words: str) -> str | None:
    """What git says about the repository whose top is `folder`; nothing if there is none.

    A folder that merely lies in a repository, as an environment in somebody's project does, has no commit of its own.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # a hook sets them

    def say(*words: str) -> str:
        return subprocess.run(["git", "-C", str(folder), *words], env=env, check=True, capture_output=True,
                              encoding="utf-8", errors="replace").stdout.strip()

    try:
        top = Path(say("rev-parse", "--show-toplevel")).resolve()
        return say(*words) if top == folder.resolve() else None
    except (OSError, subprocess.CalledProcessError):
        return None
