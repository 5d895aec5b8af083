"""Files that are written whole or not at all; those that come with the package; whose repository they are in."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from mammoth_sbs.errors import UserError, reason


def write_atomically(path: str | Path, write: Callable[[IO[bytes]], object], what: str) -> None:
    """Call `write` with a temporary file beside `path`, then rename; on trouble the old file stays."""
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as f:
            temporary = f.name
            write(f)
            f.flush()
            os.fsync(f.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as e:  # torch.save turns a full disk into a RuntimeError
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        why = (e.strerror if isinstance(e, OSError) else None) or reason(e)
        raise UserError(f"cannot write the {what} {path}: {why}; what was there before is untouched") from None


def shipped(path: str | Path) -> Path:
    """A file or folder that comes with the package: inside it once installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    return package / path if (package / Path(path).parts[0]).exists() else package.parent / path


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
