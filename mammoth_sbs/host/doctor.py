"""An examination: which host, what it has of what the plugin needs, which data; and what to do about the rest."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from mammoth_sbs import __version__, host
from mammoth_sbs.errors import reason
from mammoth_sbs.files import git
from mammoth_sbs.host.data import listing

NEEDED = {  # what the plugin takes from a host: module, names in it
    "models": "register_model get_model_names",
    "models.utils.continual_model": "ContinualModel ContinualModel.get_parser ContinualModel.observe "
                                    "ContinualModel.begin_task ContinualModel.end_task ContinualModel.begin_epoch "
                                    "ContinualModel.end_epoch ContinualModel.meta_begin_task "
                                    "ContinualModel.meta_observe ContinualModel.meta_end_task",
    "models.er": "Er", "models.der": "Der", "models.derpp": "Derpp", "models.xder": "XDer", "models.gem": "Gem",
    "models.agem": "AGem", "models.rpc": "RPC", "models.fdr": "Fdr",
    "utils.buffer": "Buffer Buffer.add_data Buffer.get_data Buffer.get_all_data Buffer.empty Buffer.is_empty",
    "utils.batch_norm": "bn_track_stats",
    "utils.args": "add_rehearsal_args",
    "utils.training": "train",
    "datasets.utils.continual_dataset": "ContinualDataset ContinualDataset.get_offsets store_masked_loaders "
                                        "MammothDatasetWrapper.add_extra_return_field",
}

Wrappable = Callable[[dict[str, Any]], list[tuple[str, str]]]


class Report:
    """Lines as they are found, and the problems for the end."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def line(self, what: str, state: str, problem: str = "") -> None:
        print(f"  {what:78} {state}", flush=True)
        if problem:
            self.problems.append(f"{what}: {problem}")


def version(folder: Path) -> str:
    """The commit of a checkout and its day."""
    if folder == host.EMBEDDED:
        return f"embedded, mammoth-sbs {__version__}"
    return f"Mammoth {git(folder, 'log', '-1', '--format=%h of %cs') or 'of unknown version (no git checkout)'}"


def packages(report: Report, embedded: bool) -> None:
    """torch, torchvision and what GEM needs."""
    print(f"\npython {platform.python_version()} with")
    for name, use in (("torch", "everything"), ("torchvision", "the real Mammoth, and downloads"),
                      ("scipy" if embedded else "quadprog", "gem")):
        try:
            module = host.import_torchvision() if name == "torchvision" else importlib.import_module(name)
        except (ImportError, RuntimeError) as e:
            report.line(name, f"missing ({reason(e)}), needed by {use}", f"pip install {name}")
            continue
        state = getattr(module, "__version__", "found")
        if name == "torch":
            state += ", GPU" if module.cuda.is_available() else ", no GPU"
        report.line(name, state)


@contextlib.contextmanager
def one_by_one(troubles: dict[str, Exception]) -> Iterator[None]:
    """Mammoth's `datasets` imports all of them and stops at the first that fails: go on, and collect the failures."""
    original = importlib.import_module

    def attempt(name: str, package: str | None = None) -> ModuleType:
        try:
            return original(name, package)
        except Exception as e:
            if not name.startswith("datasets.") or name.startswith("datasets.utils"):
                raise
            troubles[name.removeprefix("datasets.")] = e
            return ModuleType(name)

    vars(importlib)["import_module"] = attempt
    try:
        yield
    finally:
        vars(importlib)["import_module"] = original


def remedy(e: Exception) -> tuple[str, str]:
    """What is wrong with an import, and what to do."""
    if isinstance(e, ModuleNotFoundError):
        return f"needs the package {e.name}", f"pip install {host.package(e)}"
    said = reason(e)
    if host.is_offline(e):
        return (f"offline: it wants the network while it is imported ({said})",
                "go online once, or take it out of datasets/ in a copy of the checkout")
    return f"does not import ({type(e).__name__}: {said})", "see the error; it is the host's own"


def names(report: Report, folder: Path, load: Callable[[], Any], wrappable: Wrappable) -> None:
    """Every name that the plugin needs, the data sets that stop the host from starting, and the sixteen models."""
    troubles: dict[str, Exception] = {}
    print("\nnames that the plugin needs")
    with one_by_one(troubles):
        for module, wanted in NEEDED.items():
            try:
                found: Any = importlib.import_module(module)
            except Exception as e:
                state, todo = remedy(e)
                report.line(module, state, todo)
                continue
            for name in wanted.split():
                holder: Any = found
                for part in name.split("."):
                    holder = getattr(holder, part, None)
                report.line(f"{module}.{name}", "ok" if holder is not None else "missing",
                            "" if holder is not None else "update Mammoth to a version of 17 June 2025 or later")
    if troubles:
        print("\ndata sets that do not import, so that this Mammoth does not start")
        for name, trouble in troubles.items():
            report.line(f"datasets/{name}.py", *remedy(trouble))
    if not report.problems:
        models(report, folder, load, wrappable)


def models(report: Report, folder: Path, load: Callable[[], Any], wrappable: Wrappable) -> None:
    """The sixteen models, as the host finds them, and what `_sbs` models can be made of its other methods."""
    load()
    known = importlib.import_module("models").get_model_names()
    print("\nmodels")
    for name in (name for stock in host.MODELS for name in (stock, f"{stock}-sbs")):
        cls = known.get(name)
        if isinstance(cls, type):
            report.line(name, "ok")
        else:
            report.line(name, *(remedy(cls) if isinstance(cls, Exception) else ("not found", "see the names above")))
    patched = (folder / "models" / "er_sbs.py").is_file()
    if folder != host.EMBEDDED:
        print("\nother methods with a buffer: whether MAMMOTH_ROOT=... --model <method>_sbs works")
        for name, state in wrappable(known):
            report.line(name, state)
        print(f"\n  patches/mammoth.patch is {'applied' if patched else 'not applied: MAMMOTH_ROOT is the way in'}")


def data(report: Report, base: Path, embedded: bool) -> None:
    """The data sets under the base path and who accepts them; one that is not there is no problem before it is used."""
    if embedded:
        print(f"\ndata sets under {base}{'' if base.is_dir() else ', which is not there'}")
        for name, state in listing(base):
            report.line(name, state, state.removeprefix("damaged: ") if state.startswith("damaged: ") else "")
        return
    print(flush=True)
    ours = {name: value for name, value in os.environ.items() if name != "MAMMOTH_ROOT"}  # the finders are ours
    here = str(Path(__file__).resolve().parents[2])  # which need not be installed, and Mammoth may change the folder
    ours["PYTHONPATH"] = os.pathsep.join(filter(None, [here, ours.get("PYTHONPATH")]))
    words = [sys.executable, "-m", "mammoth_sbs", "data", "list", "--base_path", str(base)]
    subprocess.run(words, env=ours, check=True)


def examine(folder: Path, base: Path, load: Callable[[], Any], wrappable: Wrappable) -> list[str]:
    """Print what is found of the host in `folder` and of data below `base`; returns what to do about the rest.

    `load` loads the host with the plugin's models; `wrappable` says of its methods whether they can be wrapped.
    """
    print(f"host: {version(folder)}\n      {folder}")
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # Mammoth's own, about methods that nobody asked for
    report = Report()
    packages(report, folder == host.EMBEDDED)
    host.activate()
    names(report, folder, load, wrappable)
    data(report, base, folder == host.EMBEDDED)
    return report.problems
