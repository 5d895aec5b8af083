"""The rooms of the package: what each may import, what a user imports, and that nothing flows backwards."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mammoth_sbs import _HOMES
from tests.conftest import REPO

PACKAGE = REPO / "mammoth_sbs"
GROUND = {"errors", "few", "files", "metrics", "moved", "packages", "parser", "random_state", "result", "values",
          "watch"}  # what everybody may use
ADAPTERS = {"avalanche": {"torch", "avalanche"}}  # one file each: the core and another library, nothing of Mammoth
MAY_IMPORT = {  # room: rooms it may import
    "core": set(),
    "host": set(),
    "models": {"core", "host"},
    "tuning": {"core", "host", "models"},
    "experiments": {"core", "models", "host"},  # to read a command line as a run would, and to execute it
    "figures": {"core", "experiments"},
    "commands": {"core", "host", "models", "tuning", "experiments", "figures"},
    "vendor": set(),
}
ELSEWHERE = {"core": {"torch", "numpy"}}  # packages that a room may use, where that is limited


def rooms() -> list[str]:
    return sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__")


def imported(file: Path) -> set[str]:
    """Modules that a file imports anywhere, also inside functions; not those for type checkers only."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{_HOMES.get(alias.name, alias.name)}" if node.module == "mammoth_sbs"
                      else node.module for alias in node.names}
    return found


def test_every_room_has_its_rule() -> None:
    assert set(rooms()) == set(MAY_IMPORT)
    loose = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert loose == GROUND | set(ADAPTERS), "a module that belongs to no room"


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_nothing_flows_backwards(room: str) -> None:
    allowed = MAY_IMPORT[room] | {room} | GROUND | {"__version__"}
    for file in (PACKAGE / room).rglob("*.py"):
        ours = {name.split(".")[1] for name in imported(file) if name.startswith("mammoth_sbs.")}
        assert ours <= allowed, f"{file.relative_to(PACKAGE)} imports {ours - allowed}"


@pytest.mark.parametrize("name", sorted(GROUND))
def test_the_ground_floor_imports_no_room(name: str) -> None:
    ours = {module.split(".")[1] for module in imported(PACKAGE / f"{name}.py") if module.startswith("mammoth_sbs.")}
    assert ours <= GROUND


@pytest.mark.parametrize("name", sorted(ADAPTERS))
def test_an_adapter_knows_the_core_and_its_library(name: str) -> None:
    found = imported(PACKAGE / f"{name}.py")
    ours = {module.split(".")[1] for module in found if module.startswith("mammoth_sbs.")}
    others = {module.split(".")[0] for module in found} - set(sys.stdlib_module_names) - {"mammoth_sbs"}
    assert ours <= GROUND | {"core"} and others <= ADAPTERS[name]


@pytest.mark.parametrize("room", sorted(ELSEWHERE))
def test_the_core_needs_torch_and_numpy_alone(room: str) -> None:
    for file in (PACKAGE / room).rglob("*.py"):
        others = {name.split(".")[0] for name in imported(file)} - set(sys.stdlib_module_names) - {"mammoth_sbs"}
        assert others <= ELSEWHERE[room], f"{file.relative_to(PACKAGE)} imports {others - ELSEWHERE[room]}"


def test_only_commands_read_the_command_line() -> None:
    """And the host, whose `main()` is called without arguments."""
    for room in set(rooms()) - {"commands", "vendor"}:
        for file in (PACKAGE / room).rglob("*.py"):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            read = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "argv"]
            assert not read, f"{file.relative_to(PACKAGE)} reads sys.argv"


def test_text_files_are_utf_8_whatever_the_locale() -> None:
    """Whoever opens a text file says so."""
    scripts = [path for path in (REPO / "scripts").iterdir() if b"env python" in path.read_bytes()[:30]]
    for file in (*PACKAGE.rglob("*.py"), *(REPO / "examples").rglob("*.py"), *scripts):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            call = ast.unparse(node) if isinstance(node, ast.Call) else ""
            opens = re.match(r"(\S+\.)?(fdopen|(?<!os\.)(?<!Image\.)(?<!tarfile\.)open)\(", call)
            binary = re.search(r"'[rwax]\+?b\+?'", call)
            if (opens and not binary) or re.match(r"\S+\.(read|write)_text\(", call):
                assert "encoding='utf-8'" in call, f"{file.relative_to(REPO)}, line {node.lineno}: {call}"


def test_the_package_is_imported_at_once_and_without_torch() -> None:
    code = ("import sys, time; start = time.perf_counter(); import mammoth_sbs; "
            "took = time.perf_counter() - start; assert took < 0.5, took; "
            "assert not {'torch', 'numpy'} & set(sys.modules); "
            "from mammoth_sbs import LearningSpeed; assert 'torch' in sys.modules and len(LearningSpeed(3)) == 3")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPO)


def test_what_a_user_imports_is_there() -> None:
    package = importlib.import_module("mammoth_sbs")
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing


def test_modules_are_found_by_the_names_of_the_first_version() -> None:
    """Each in a process that has imported nothing of the project: which name is imported first must not matter."""
    pairs = [("samplers", "core.samplers"), ("samplers.base", "core.samplers.base"), ("speed", "core.speed"),
             ("band", "core.band"), ("record", "core.record")]
    code = f"""
import importlib, os, torch
for old, new in {pairs}:
    for first, second in ((old, new), (new, old)):
        child = os.fork()
        if not child:
            a, b = (importlib.import_module(f"mammoth_sbs.{{name}}") for name in (first, second))
            os._exit(0 if a is b and a.__spec__.name == f"mammoth_sbs.{{new}}" else 1)
        assert os.waitpid(child, 0)[1] == 0, (first, second)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPO)
