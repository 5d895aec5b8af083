"""The wheel, built and used from an empty folder in an environment of its own: nothing needs a checkout."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mammoth_sbs import __version__
from mammoth_sbs.experiments.store import version
from tests.conftest import REPO

NEEDED = ["mammoth_sbs", "configs", "examples", "patches", "setup.py", "setup.cfg", "pyproject.toml", "README.md",
          "LICENSE"]
RUN = "run --model er-sbs --dataset seq-digits --buffer-size 50 --n_epochs 2 --stop_after 2 --seed 1"


def do(words: list[str], **kwargs: object) -> str:
    done = subprocess.run(words, capture_output=True, text=True, **kwargs)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    for name in NEEDED:  # a copy: building leaves things beside the source
        if (REPO / name).is_dir():
            shutil.copytree(REPO / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(REPO / name, folder / "source" / name)
    do([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "-w",
        str(folder), str(folder / "source")])
    (file,) = folder.glob("*.whl")
    return file


class Environment:
    """Its own `bin` and packages; what the wheel needs is taken from this environment, which is quick."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        do([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")])
        self.bin, self.here = folder / "env" / "bin", folder / "empty"
        self.here.mkdir()
        do([sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", "--quiet", "--no-deps",
            "--no-index", str(wheel)])
        (packages,) = (folder / "env").glob("lib/python*/site-packages")
        heavy = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        (packages / "heavy.pth").write_text("\n".join(heavy))

    def __call__(self, line: str) -> str:
        env = {"PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(self.here), "OMP_NUM_THREADS": "1"}
        return do(shlex.split(line), cwd=self.here, env=env)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(wheel, tmp_path_factory.mktemp("installed"))


def test_what_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = [path for name in NEEDED[:4] for path in (REPO / name).rglob("*") if path.is_file()
               and "__pycache__" not in path.parts]
    for path in tracked:
        inside = path.relative_to(REPO).as_posix()
        inside = inside if inside.startswith("mammoth_sbs/") else f"mammoth_sbs/{inside}"
        assert inside in names, f"{inside} is not in the wheel"
    assert "mammoth_sbs/py.typed" in names and "mammoth_sbs/patches/mammoth.patch" in names
    assert {name.split("/")[0] for name in names} == {"mammoth_sbs", f"mammoth_sbs-{__version__}.dist-info"}


def test_the_packages_that_are_imported_are_declared(wheel: Path) -> None:
    from tests.test_rooms import imported

    metadata = zipfile.ZipFile(wheel).read(f"mammoth_sbs-{__version__}.dist-info/METADATA").decode()
    declared = {re.split(r"[^\w-]", name)[0].lower() for name in re.findall(r"^Requires-Dist: (.*)$", metadata, re.M)}
    assert "quadprog" not in metadata  # its licence is not ours
    names = {"yaml": "pyyaml", "PIL": "pillow", "sklearn": "scikit-learn", "avalanche": "avalanche-lib",
             "efficientnet_lite_pytorch": "efficientnet-lite-pytorch"}
    of_a_host = {"models", "datasets", "backbone", "utils", "conf"}
    for file in (REPO / "mammoth_sbs").rglob("*.py"):
        others = {name.split(".")[0] for name in imported(file)} - set(sys.stdlib_module_names) - of_a_host
        missing = {names.get(name, name) for name in others - {"mammoth_sbs"}} - declared
        assert not missing, f"{file.relative_to(REPO)} imports {missing}"


def test_version_patch_configs_and_examples(installed: Environment) -> None:
    assert installed("mammoth-sbs --version") == f"mammoth-sbs {__version__}\n"
    where = Path(installed("python -c 'import mammoth_sbs; print(mammoth_sbs.__file__)'").strip())
    assert where.is_relative_to(installed.bin.parent)
    assert installed("mammoth-sbs patch") == (REPO / "patches" / "mammoth.patch").read_text(encoding="utf-8")
    listed = [line.split()[0] for line in installed("mammoth-sbs configs").splitlines()]
    there = [path.relative_to(REPO).as_posix() for path in (REPO / "configs").rglob("*.yaml")]
    assert set(there) == {name for name in listed if name.startswith("configs/")}
    assert "examples/plain_pytorch.py" in listed
    installed("mammoth-sbs configs copy configs/examples examples/plain_pytorch.py --to mine")
    found = sorted(path.relative_to(installed.here).as_posix() for path in (installed.here / "mine").rglob("*.*"))
    assert found == [*(f"mine/configs/examples/{name}.yaml" for name in ("digits", "forgetting")),
                     "mine/examples/plain_pytorch.py"]
    assert "examples to replay" in installed("python mine/examples/plain_pytorch.py")


def test_results_of_the_wheel_are_results_of_the_checkout(installed: Environment) -> None:
    code = "from mammoth_sbs.experiments.store import version; print(version())"
    assert installed(f"python -c '{code}'").strip() == version()


def test_a_run_names_a_command_that_repeats_it(installed: Environment) -> None:
    assert installed("mammoth-sbs run --help").startswith("usage: mammoth-sbs run --model MODEL")
    assert "Accuracy for 2 task(s)" in installed(f"mammoth-sbs {RUN}")
    (first,) = (json.loads(file.read_text()) for file in installed.here.rglob("results/**/*.json"))
    assert first["command"].startswith("mammoth-sbs run --model er-sbs ") and first["commit"] is None
    installed(first["command"])
    one, other = (json.loads(file.read_text())["results"] for file in installed.here.rglob("results/**/*.json"))
    assert one == other


def test_a_sweep_that_comes_with_the_package(installed: Environment) -> None:
    text = installed("mammoth-sbs sweep configs/examples/digits.yaml --dry-run --jobs 1")
    assert "12 runs in results/digits: 0 finished, 12 to do" in text
