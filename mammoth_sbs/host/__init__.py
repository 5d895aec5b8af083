"""Which Mammoth to run on: the embedded host, or the user's own checkout."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from mammoth_sbs.errors import UserError, reason
from mammoth_sbs.files import git, read_yaml
from mammoth_sbs.host.data import accept_exported
from mammoth_sbs.packages import import_torchvision
from mammoth_sbs.parser import spelled

EMBEDDED = Path(__file__).resolve().parent.parent / "vendor" / "mammoth"
BUFFER_SIZE = 500  # that the published hyper-parameters are for
MODELS = ("er", "der", "derpp", "xder", "gem", "agem", "rpc", "fdr")


def root() -> Path:
    """The folder with Mammoth's layout that is in use."""
    given = os.environ.get("MAMMOTH_ROOT")
    return Path(given).resolve() if given else EMBEDDED


@cache
def commit(folder: Path) -> str:
    """Names the code of a checkout: its commit, with a digest of what was changed in files of it; a digest of all files
    if it is no git checkout. A data set's file that was taken out, as must be offline, is no change."""
    head = git(folder, "rev-parse", "--short=12", "HEAD")
    if head is None:
        files = [file for room in ("backbone", "datasets", "models", "utils") for file in (folder / room).rglob("*.py")]
        content = hashlib.sha256()
        for file in sorted([folder / "main.py", *files]):
            content.update(f"{file.relative_to(folder).as_posix()}\0".encode() + file.read_bytes())
        return f"files.{content.hexdigest()[:12]}"
    changed = git(folder, "diff", "HEAD", "--diff-filter=d")
    return head + (f".{hashlib.sha256(changed.encode()).hexdigest()[:8]}" if changed else "")


def way_in() -> str:
    """What stands before a command that is to be repeated on a user's own Mammoth."""
    return "" if root() == EMBEDDED else "MAMMOTH_ROOT=/path/to/mammoth "


def is_embedded() -> bool:
    """Whether the `models` in use are the embedded host's: a patched checkout works without `MAMMOTH_ROOT`."""
    return Path(str(sys.modules["models"].__file__)).parent.parent == EMBEDDED


def published(stock: str, dataset: str | None) -> dict[str, Any]:
    """A method's `best` hyper-parameters on a data set, or nothing for one that is not listed."""
    file = EMBEDDED / "models" / "config" / f"{stock}.yaml"
    config = read_yaml(file) if file.is_file() else {}
    return dict(config.get((dataset or "").replace("_", "-"), {}).get(BUFFER_SIZE, {}))


def check(folder: Path) -> None:
    """Whether `folder` is a Mammoth that the plugin can run on; if not, one line on why."""
    files = ("main.py", "models/__init__.py", "models/utils/continual_model.py", "utils/args.py", "utils/buffer.py",
             "datasets/utils/continual_dataset.py")
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise UserError(f"MAMMOTH_ROOT {folder}: not a Mammoth checkout, it has no {missing[0]}; give the folder that "
                        "holds Mammoth's main.py")
    for file, name in (("models/__init__.py", "register_model"), ("utils/args.py", "--checkpoint_path")):
        if name not in (folder / file).read_text(encoding="utf-8"):
            raise UserError(f"MAMMOTH_ROOT {folder}: this Mammoth is too old, its {file} has no {name}; "
                            "update it to a version of 17 June 2025 or later")


def activate() -> Path:
    """Put the host on `sys.path`, so that `models`, `datasets`, `backbone` and `utils` are its own."""
    folder = root()
    if folder != EMBEDDED:
        check(folder)
        with blame_host(folder):
            import_torchvision()
            accept_exported()
    for name in ("models", "datasets", "backbone", "utils"):
        places = [str(place) for place in getattr(sys.modules.get(name), "__path__", [])]
        if name in sys.modules and str(folder / name) not in places:
            raise UserError(f"a module called {name} is imported already ({', '.join(places) or 'a file'}), and "
                            "Mammoth has one of that name; use them in two Python processes")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return folder


def load_main() -> Any:
    """The host's `main` module; of a user's Mammoth with the same way in (`real.Mammoth`)."""
    return load_embedded() if root() == EMBEDDED else load_mammoth(root())


def load_embedded() -> ModuleType:
    """The embedded host's `main` module."""
    return execute_main(activate())


@cache
def load_mammoth(folder: Path) -> Any:
    """A user's Mammoth; it changes the working directory while it is imported, which is undone."""
    from mammoth_sbs.host.networks import register_networks
    from mammoth_sbs.host.real import Mammoth

    here = os.getcwd()
    try:
        module = execute_main(activate())
        with blame_host(folder):
            register_networks()
            return Mammoth(module, folder)
    finally:
        os.chdir(here)


def execute_main(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("mammoth_main", folder / "main.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with blame_host(folder):
        spec.loader.exec_module(module)
    return module


def as_seen_from_here(argv: list[str]) -> list[str]:
    """The same command line with flags as Mammoth spells them, and with paths, and defaults of paths, that stay right
    when the host changes the working directory, as Mammoth does."""
    words: list[str] = []
    for word in argv:
        flag, equals, value = word.partition("=")
        if word.startswith("--") and not word.startswith("--p-"):  # STAR's, the only ones with dashes there
            flag = spelled(flag)
        if flag in PATHS and equals:
            value = str(Path(value).absolute())
        elif words and words[-1] in PATHS:
            flag = str(Path(flag).absolute())
        words.append(flag + equals + value)
    for flag, default in (("--base_path", "data"), ("--checkpoint_path", "checkpoints")):
        if flag not in (word.partition("=")[0] for word in words):
            words += [flag, str(Path(default).absolute())]
    return words


PATHS = ("--base_path", "--checkpoint_path", "--loadcheck", "--sbs-record")


@contextmanager
def blame_host(folder: Path) -> Iterator[None]:
    """Importing a user's Mammoth may fail for reasons of its own: say which, in one line."""
    try:
        yield
    except ModuleNotFoundError as e:
        raise UserError(f"MAMMOTH_ROOT {folder}: Mammoth needs the package {e.name}, which is not installed; "
                        f"pip install {package(e)}, or all of its requirements.txt") from None
    except Exception as e:
        files = [frame.filename for frame in traceback.extract_tb(e.__traceback__)]
        culprit = next((file for file in files if str(folder / "datasets") in file and "__init__" not in file), None)
        if culprit is None or not is_offline(e):
            raise
        raise UserError(f"MAMMOTH_ROOT {folder}: {Path(culprit).name} wants the network while it is imported "
                        f"({reason(e)}); go online once, or take it out of datasets/ in a copy of the checkout"
                        ) from None


def is_offline(e: BaseException | None) -> bool:
    """Whether an error comes from a missing network: libraries wrap the `OSError` of it in their own."""
    while e is not None:
        if isinstance(e, OSError):
            return True
        e = e.__cause__ or e.__context__
    return False


def package(e: ModuleNotFoundError) -> str:
    """What to install for a missing module."""
    name = (e.name or "").split(".")[0]
    return PACKAGES.get(name, name)


PACKAGES = {  # where the package has another name than the module
    "yaml": "pyyaml", "PIL": "Pillow", "sklearn": "scikit-learn", "dotenv": "python-dotenv", "git": "gitpython",
    "open_clip": "open_clip_torch", "google_drive_downloader": "googledrivedownloader",
    "clip": "git+https://github.com/openai/CLIP.git"}
