"""Files that are written whole or not at all."""

from __future__ import annotations

import os
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
