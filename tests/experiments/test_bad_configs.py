"""Bad configurations and command lines of sweeps: one line, with the line of the file, before any run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mammoth_sbs.commands import sweep as sweep_command
from mammoth_sbs.errors import UserError
from tests.experiments.conftest import BASE, GOOD

BAD = [
    (f"grid: {{}}\nbase: {BASE} --model er --nepochs 1", r"line 2: unknown flag --nepochs; did you mean --n_epochs\?"),
    ("base:\n  dataset: seq-digits\n  model: er\n  lr: much\n  buffer_size: 9", r"line 4: argument --lr: .*much"),
    ("base: >\n  --dataset seq-digits --model er\n  --lr 1\n  --bufer_size 9", "line 4: unknown flag --bufer_size"),
    (f"base: {BASE}\ngrid:\n  model: [er,\n    err]\n", "line 4: --model err: not known"),
    (f"base: {BASE}\ngrid:\n  arm:\n  - {{model: er}}\n  - {{model: er, sbs-q: 0.2}}", "line 5: --sbs-q is a flag"),
    (f"base: {BASE} --model er_sbs\ngrid:\n  sampler: [speed, sped]", "line 3: --sampler: there is no sampler `sped`"),
    (f"base: {BASE} --model er_sbs\ngrid:\n  sbs-q: [0.2, 20]", r"line 3: .*--sbs-q: .*; did you mean 0\.2\?"),
    (f"base: {BASE} --model er_sbs\ngrid:\n  sbs-q: [0.2]\n  sbs-s: [0.9]", "line 3: --sbs-q 0.2, --sbs-s 0.9: "),
    ("base:\n  dataset: seq-digits\n  model: er\n  lr: 1\n  buffer_size: 9\n  n_tasks: 3", "line 6: --n_tasks 3 does"),
    (f"base: {BASE}", "line 1: --model is missing"),
    (f"base: {BASE} --model er --seed 1", "line 1: --seed does not belong here: give the seeds under `seeds:`"),
    (f"base: {BASE} --lr 2", "line 1: --lr is given twice"),
    (f"base: {BASE}\ngrid: {{model: [er], arm: [{{model: gem}}]}}", "line 2: --model is in two axes of the grid"),
    (f"base: {BASE}\ngrid:\n  model: er", r"line 3: model: a list is needed in a grid, such as \[a, b\]"),
    (f"base: {BASE}\ngrid:\n  model:\n", "line 3: model: a list is needed"),
    (f"base: {BASE}\ngrids:\n  model: [er]", r"line 2: unknown key grids; did you mean grid\? There are: name, "),
    (f"base: {BASE}\nxyz: 1", r"line 2: unknown key xyz\. There are: name, base"),
    (f"base: {BASE}\nbase: --lr 2", "line 2: base is given twice, first in line 1"),
    (f"base: {BASE} --model er\nseeds: -1", "line 2: a whole number from 1 to 100000 is needed, not -1"),
    (f"base: {BASE} --model er\nseeds: [1, 1]", "line 2: seeds: give each once"),
    (f"base: {BASE} --model er\nseeds: [1, {2**64}]", "line 2: a whole number from 0 to 18446744073709551615 is"),
    (f"base: {BASE} --model er\nseeds: 100000000000", "line 2: a whole number from 1 to 100000 is needed"),
    (f"base: {BASE}\ngrid:\n  lr: &a [1,2,3,4,5,6,7,8,9,10]\n  b: *a\n  c: *a\n  d: *a\n  e: *a\n  f: *a",
     "line 3: grid: more than 100000 combinations"),
    (f"base: {BASE} --model er\ngrid: &a [*a]", ": nested too deeply"),
    (f"base: {BASE} --model er\ngrid: {'[' * 3000}", ": nested too deeply"),
    (f"base: {BASE} --model er\nname: ..", "line 2: name: it names a folder"),
    (f"base: {BASE} --model er_sbs --sbs-record x.npz\nseeds: 2", "line 1: --sbs-record: all runs would"),
    ("base: [1, 2", "line 1: not YAML: "),
    ("name: a\ngrid: {model: [er]}", "line 1: --dataset is missing"),
    ("base: er --lr 1", "line 1: a command line of flags is needed; er comes before any flag"),
    ("", ": empty; it needs `base:`"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_bad_config_fails_before_the_first_run(text: str, message: str, do: Callable[..., Path],
                                                 tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^[^\n]*config.yaml(, )?{message}[^\n]*$"):
        do(text)
    assert not list(tmp_path.rglob("*.json")) and not list(tmp_path.rglob("*.log"))


@pytest.mark.parametrize(("flags", "message"), [
    (["--jobs", "0"], "argument --jobs: a whole number of at least 1 is needed, not 0"),
    (["--gpus-per-run", "1"], "--gpus-per-run is for a cluster: give --ray"),
    (["--gpus-per-run", "nan", "--ray", "auto"], "argument --gpus-per-run: a number of at least 0 is needed, not nan"),
    (["--ray", "auto", "--jobs", "2"], "--jobs is for runs on this machine"),
    (["--job", "2"], "unknown flag --job; did you mean --jobs\\?; see mammoth-sbs sweep --help"),
])
def test_a_bad_command_line(flags: list[str], message: str, do: Callable[..., Path]) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        do(GOOD, *flags)


def test_a_config_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere.yaml: cannot be read: No such file"):
        sweep_command.main([str(tmp_path / "nowhere.yaml")])


def test_a_mammoth_that_is_none(do: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAMMOTH_ROOT", "somewhere")
    with pytest.raises(UserError, match="somewhere: not a Mammoth checkout, it has no main.py"):
        do(GOOD)


def test_a_folder_that_cannot_be_written(do: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="--results .*file/out: cannot be written: Not a directory"):
        do(GOOD, results="file/out")
