"""README and docs: code blocks that can run in a minute are run; of all others, flags parse and files exist.

A block is run unless a comment before it says `<!-- not run: why -->` or `<!-- run by FILE -->`, the test that does.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from mammoth_sbs.commands import COMMANDS, main
from mammoth_sbs.core.samplers import SAMPLERS
from tests.conftest import REPO, digits_read_once, mammoth_main

PAGES = [REPO / "README.md", REPO / "CONTRIBUTING.md", *sorted((REPO / "docs").glob("*.md"))]
FENCE = re.compile(r"^(?:<!-- (?P<mark>[^>]*) -->\n)?```(?P<language>\w+)(?: title=\"(?P<file>[^\"]+)\")?\n"
                   r"(?P<text>.*?)^```$", re.M | re.S)
OURS = re.compile(r"^(?:\w+=\S+ )*(?:mammoth-sbs \w|scripts/\w|python main\.py )")
PLACEHOLDER = re.compile(r"[A-Z]{3}|<|\.\.\.|--data |--extra_models ")  # of the reader's own
SHELL = {"for", "done", "du", "rm", "export", "git"}  # nothing of ours to check
SLOW = re.compile(r"--dataset seq[-_](?!digits|shapes)|configs/(small|paper)|scripts/(test|docs|bench|mutants)")


@dataclass
class Block:
    """A fenced piece of code."""

    page: str
    mark: str
    language: str
    file: str
    text: str

    @property
    def commands(self) -> list[str]:
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.strip().removeprefix("do ") for line in lines if line.split("#")[0].strip() not in ("", "done")]


def blocks(page: Path) -> list[Block]:
    found = FENCE.finditer(page.read_text(encoding="utf-8"))
    return [Block(page.name, *(match[name] or "" for name in ("mark", "language", "file", "text"))) for match in found]


def words_of(line: str) -> tuple[list[str], str]:
    """A command without comment, environment and pipe, and the file that its output goes to."""
    line, _, file = line.partition(" > ")
    words = shlex.split(line.partition(" | ")[0], comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    if words[:2] == ["python", "main.py"]:
        words = ["mammoth-sbs", "run", *words[2:]]
    elif words[:1] == ["scripts/run"]:
        words = ["mammoth-sbs", *(["run", *words[1:]] if words[1:] else ["demo"])]
    return words, file.split("#")[0].strip()


def check(line: str, page: str) -> None:
    """That a command could be typed: its flags parse, its files exist, or the page has made them."""
    words, _ = words_of(line)
    program, *rest = words
    if program == "mammoth-sbs":
        command, *flags = rest
        assert command in COMMANDS, line
        if command in ("run", "tune"):
            mammoth_main.parse_args(flags)
        elif command != "patch":
            if command == "data" and flags[0] not in ("list", "export"):
                flags.insert(0, "look")  # which it is without a word
            args = importlib.import_module(f"mammoth_sbs.commands.{command}").parser().parse_args(flags)
            if command == "sweep":
                assert (REPO / args.config).is_file(), line
            if command in ("figure", "report", "pack"):
                made = {Path(folder).name for folder in re.findall(r"--results (\S+)", page)}
                assert {path.name for path in args.results} <= sweeps() | made, line
    elif program == "pip":
        (wanted,) = re.findall(r"\[(.*)\]", line) or [""]
        assert {name for name in wanted.split(",") if name} <= extras(), line
    elif program.startswith("scripts/"):
        assert (REPO / program).is_file(), line
    elif program == "python":
        assert (REPO / rest[0]).is_file(), line
    else:
        assert program in SHELL, f"{line}: what is {program}?"


@functools.cache
def sweeps() -> set[str]:
    """What the folders of results are called."""
    files = (REPO / "configs").rglob("*.yaml")
    return {yaml.safe_load(file.read_text(encoding="utf-8")).get("name", file.stem) for file in files}


def extras() -> set[str]:
    config = ConfigParser()
    config.read(REPO / "setup.cfg", encoding="utf-8")
    return set(config["options.extras_require"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_could_be_typed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those in blocks that are not fenced, which nobody runs."""
    monkeypatch.chdir(tmp_path)
    fenced, text = blocks(page), page.read_text(encoding="utf-8")
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "empty.py").touch()
    for block in fenced:
        if block.mark.startswith("run by "):
            file = block.mark.split()[2].strip(",")
            assert (REPO / file).is_file(), f"{page.name}: {file} is not there"
        if block.language == "sh":
            for line in block.commands:
                if not re.search("--data |--extra_models ", line):  # of the reader's own; those of extend.md are run
                    check(line, text)
        elif block.language == "python":
            compile(block.text, page.name, "exec")
        elif block.language == "yaml":
            yaml.safe_load(block.text)
    rest = FENCE.sub("", text).replace("\\\n", " ")
    for line in re.findall(r"^    (.*)$", rest, re.M):
        if OURS.match(line) and not PLACEHOLDER.search(line):
            check(line, text)


@dataclass
class Reader:
    """Types what the docs say, in one folder; what was typed before is not typed again."""

    folder: Path
    typed: dict[str, Any]

    def types(self, line: str) -> None:
        words, file = words_of(line)
        if line not in self.typed:
            assert words[0] == "mammoth-sbs", f"cannot run {line}"
            said = io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
                main(words[1:])
            self.typed[line] = said.getvalue()
            if file:
                (self.folder / file).write_text(said.getvalue(), encoding="utf-8")
        assert self.typed[line].strip(), f"{line} says nothing"

    def executes(self, block: Block, names: dict[str, Any]) -> None:
        if block.text not in self.typed:
            exec(compile(block.text, block.page, "exec"), names)
            self.typed[block.text] = names
        names.update(self.typed[block.text])


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """In a folder with what lies in a checkout. What the pages register is forgotten at the end."""
    import datasets
    import models
    from datasets.utils import sources

    folder = tmp_path_factory.mktemp("docs")
    for name in ("configs", "examples"):
        (folder / name).symlink_to(REPO / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MAMMOTH_SBS_CACHE", str(folder / "cache"))
        patch.setenv("MPLBACKEND", "agg")
        patch.setattr(models, "__path__", list(models.__path__))
        patch.setattr(datasets, "REGISTERED_DATASETS", dict(datasets.REGISTERED_DATASETS))
        patch.setattr(sources, "SPECS", dict(sources.SPECS))
        patch.setattr(sources, "_digits", digits_read_once)
        yield Reader(folder, {})
    models._classes.cache_clear()
    for name in [name for name in sys.modules if name in ("models.heavy_er", "models.seq_shapes")]:
        del sys.modules[name]
    SAMPLERS.pop("slowest", None)


def runs(page: Path) -> list[Block]:
    return [block for block in blocks(page) if not block.mark.startswith(("not run: ", "run by "))
            and block.language in ("sh", "python")]


@pytest.mark.parametrize("page", [page for page in PAGES if runs(page)], ids=lambda page: page.name)
def test_what_can_run_is_run(page: Path, reader: Reader) -> None:
    pytest.importorskip("matplotlib")
    torch.manual_seed(0)
    names: dict[str, Any] = {"torch": torch, "x": torch.rand(64, 64), "y": torch.arange(64) % 10,  # what a reader has
                             "net": torch.nn.Linear(64, 10)}
    for block in runs(page):
        if block.file:
            (reader.folder / block.file).parent.mkdir(exist_ok=True)
            (reader.folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            reader.executes(block, names)
        else:
            for line in block.commands:
                assert not SLOW.search(line), f"{page.name}: more than a minute: mark it <!-- not run: why -->: {line}"
                reader.types(line)
    if page.name == "README.md":
        assert 32 < len(names["band"].kept) < 64 and names["result"].matrix.shape == (5, 5)


def test_every_command_has_its_place_in_the_docs() -> None:
    text = (REPO / "docs" / "commands.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^## ([a-z]+)$", text, re.M)) == sorted(COMMANDS)
    assert {line.split()[1] for page in PAGES for block in blocks(page) for line in block.commands
            if line.startswith("mammoth-sbs ")} >= set(COMMANDS)


def test_the_site_is_built_and_every_page_is_in_it(tmp_path: Path) -> None:
    """`--strict`: a link or an anchor that leads nowhere is an error."""
    pytest.importorskip("material", reason="mkdocs-material is not installed: pip install 'mammoth-sbs[docs]'")
    command = ["mkdocs", "build", "--quiet", "--strict", "-d", str(tmp_path / "site")]
    done = subprocess.run([sys.executable, "-m", *command], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    menu = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    for page in [*(page.stem for page in (REPO / "docs").glob("*.md")), "changelog", "contributing"]:
        assert (tmp_path / "site" / f"{page}.html").is_file() and f'href="{page}.html"' in menu
    assert "https://fonts." not in menu  # nothing is loaded from elsewhere
    assert (tmp_path / "site" / "results" / "tune" / "study.png").is_file()
