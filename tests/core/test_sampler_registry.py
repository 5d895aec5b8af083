"""Samplers by name: the built-in ones, mistyped ones, and those of installed packages."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from mammoth_sbs.core import samplers
from mammoth_sbs.core.samplers import SAMPLERS, Sampler, Task, get_sampler, sampler_names
from mammoth_sbs.errors import UserError
from tests.core.conftest import FIELDS, NAMES, seeded


def test_names() -> None:
    assert set(SAMPLERS) == {*NAMES, "speed", "speed-balanced"} <= set(sampler_names())
    for name, cls in SAMPLERS.items():
        assert type(get_sampler(name)) is cls and cls.name == name and cls.needs <= set(FIELDS)
    assert type(get_sampler("max_entropy")) is SAMPLERS["max-entropy"]


@pytest.mark.parametrize(
    ("typed", "meant"), [("herdin", "herding"), ("max_entropi", "max-entropy"), ("GSS", "gss"), ("unifrm", "uniform")]
)
def test_an_unknown_name_is_answered_with_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(UserError) as error:
        get_sampler(typed)
    message = str(error.value)
    assert f"`{typed}`" in message and f"did you mean `{meant}`?" in message and "\n" not in message
    assert all(name in message for name in sampler_names())


def test_a_name_like_no_other_gets_the_list_only() -> None:
    with pytest.raises(UserError, match="choose one of speed, uniform") as error:
        get_sampler("qqqqqqqq")
    assert "did you mean" not in str(error.value)


THIRD_PARTY = """
import torch
from mammoth_sbs.core.samplers import Sampler

class Lowest(Sampler):
    name = "lowest-loss"
    needs = frozenset({"losses"})

    def choose(self, task, k, generator):
        return task.need("losses").argsort()[:k]

class Stranger:
    pass
"""
ENTRY_POINTS = """[mammoth_sbs.samplers]
lowest_loss = third_party_sampler:Lowest
stranger = third_party_sampler:Stranger
missing = third_party_sampler_without:Anything
gss = third_party_sampler:Lowest
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package with samplers, built as a wheel and installed by pip."""
    wheel = tmp_path / "third_party_sampler-1.0-py3-none-any.whl"
    info = "third_party_sampler-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("third_party_sampler.py", THIRD_PARTY)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: third-party-sampler\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/entry_points.txt", ENTRY_POINTS)
        archive.writestr(f"{info}/RECORD", "")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)]
    subprocess.run([*pip, str(wheel)], check=True)
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "third_party_sampler", raising=False)


@pytest.mark.usefixtures("third_party")
def test_an_installed_package_adds_a_sampler() -> None:
    assert sampler_names()[-3:] == ["lowest-loss", "missing", "stranger"]
    for name in ("lowest-loss", "lowest_loss"):
        sampler = get_sampler(name)
        assert isinstance(sampler, Sampler)
        task = Task(torch.arange(4), losses=torch.tensor([3.0, 1.0, 4.0, 2.0]))
        assert sampler.choose(task, 2, seeded()).tolist() == [1, 3]
    assert type(get_sampler("gss")) is SAMPLERS["gss"]  # a built-in name cannot be taken over
    with pytest.raises(UserError, match="did you mean `lowest-loss`"):
        get_sampler("lowest-los")
    with pytest.raises(UserError, match="third_party_sampler:Stranger is not a subclass"):
        get_sampler("stranger")
    with pytest.raises(UserError, match="third_party_sampler_without:Anything could not be imported"):
        get_sampler("missing")


class Quickest(Sampler):
    """What another package may bring."""

    name, needs = "quickest", frozenset({"speed"})

    def choose(self, task: Task, k: int, generator: torch.Generator) -> torch.Tensor:
        return task.need("speed").argsort(descending=True)[:k]


def no_class() -> None:
    """Nor is this a sampler."""


def test_what_entry_points_name_is_loaded_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    group = "mammoth_sbs.samplers"
    found = [EntryPoint(name, value, group) for name, value in (
        ("the_quickest", f"{__name__}:Quickest"), ("gss", f"{__name__}:Quickest"), ("a-path", "pathlib:Path"),
        ("no-class", f"{__name__}:no_class"), ("missing", f"{__name__}:Nothing"))]
    monkeypatch.setattr(samplers, "entry_points", lambda group: [entry for entry in found if entry.group == group])
    monkeypatch.setattr(samplers, "_installed", samplers._installed.__wrapped__)
    assert sampler_names() == [*SAMPLERS, "a-path", "missing", "no-class", "the-quickest"]
    for name in ("the-quickest", "the_quickest"):
        assert type(get_sampler(name)) is Quickest
    assert type(get_sampler("gss")) is SAMPLERS["gss"]
    for name, says in (("a-path", "pathlib:Path is not a subclass"), ("no-class", "no_class is not a subclass"),
                       ("missing", ":Nothing could not be imported"), ("quickest", "did you mean `the-quickest`?")):
        with pytest.raises(UserError) as error:
            get_sampler(name)
        assert says in str(error.value), name
