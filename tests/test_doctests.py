"""The examples in the docstrings of what a user imports."""

from __future__ import annotations

import doctest

import pytest
import torch

import mammoth_sbs


@pytest.mark.parametrize("name", ["LearningSpeed", "Sampler", "SpeedBand", "SpeedHook", "Task", "get_sampler", "train"])
def test_the_example_runs(name: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    thing = getattr(mammoth_sbs, name)
    names = {**{name: getattr(mammoth_sbs, name) for name in mammoth_sbs.__all__}, "torch": torch, "nn": torch.nn}
    tests = [test for test in doctest.DocTestFinder(recurse=False).find(thing, name, globs=names) if test.examples]
    assert tests, f"{name} has no example"
    for test in tests:
        results = doctest.DocTestRunner().run(test)
        assert not results.failed
