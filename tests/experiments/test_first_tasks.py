"""First tasks are shared without a trace in the numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mammoth_sbs.experiments.config import read_config
from mammoth_sbs.experiments.executors.local import Local
from mammoth_sbs.experiments.runs import resolve, share
from mammoth_sbs.experiments.store import Store
from tests.conftest import STOCK
from tests.experiments.conftest import BASE, content


def test_a_shared_first_task_leaves_no_trace_in_the_numbers(do: Callable[..., Path]) -> None:
    text = f"""
base: {BASE} --debug_mode 1
grid:
  model: [{', '.join(f'{name}_sbs' for name in STOCK)}]
  point: [{{sbs-q: 0, sbs-s: 0.4}}, {{sampler: max-entropy}}]
"""
    runs = len(STOCK) * 2
    shared, scratch = do(text, results="shared"), do(text, "--no-share", results="scratch")
    assert len(content(shared)) == runs
    assert content(shared) == content(scratch)


def test_a_first_task_is_trained_once_and_removed_after_its_last_run(config: Callable[[str], Path],
                                                                    tmp_path: Path) -> None:
    text = f"{{base: {BASE} --model er_sbs, grid: {{sbs-q: [0, 0.2, 0.4]}}}}"
    store = Store(tmp_path / "out")
    store.folder.mkdir()
    runs = share(resolve(read_config(config(text))), store)
    outcomes = Local(2, 1).run(runs, store)
    assert isinstance(next(outcomes)[1], dict)
    (file,) = store.first_tasks.iterdir()
    trained = file.stat().st_mtime_ns
    assert isinstance(next(outcomes)[1], dict)
    assert file.stat().st_mtime_ns == trained
    assert isinstance(next(outcomes)[1], dict)
    assert not list(outcomes) and not file.exists()


def test_who_shares_a_first_task(config: Callable[[str], Path]) -> None:
    """Points and samplers do; stock methods, those that insert as stock, and other methods, seeds and flags do not."""

    def groups(grid: str, seeds: int = 1, base: str = BASE) -> list[str | None]:
        return [run.first_task for run in resolve(read_config(config(
            f"{{base: {base}, grid: {grid}, seeds: {seeds}}}")))]

    points = groups("{model: [er_sbs], point: [{sbs-q: 0}, {sbs-s: 0}, {sampler: uniform}, {sampler: gss}]}")
    assert len(points) == 4 and len(set(points)) == 1 and points[0]
    later = groups("{model: [er_sbs], later: [{sbs-q: 0.2}, {lr_later: 0.01}, {second_task: rotations}]}")
    assert len(set(later)) == 1 and later[0]
    assert groups("{model: [er, agem]}") == [None, None]
    assert groups("{model: [er_sbs], sbs-during: [stock]}") == [None]
    assert groups("{model: [er_sbs], sbs-record: ['{id}.npz']}") == [None]
    assert len(set(groups("{model: [er_sbs, rpc_sbs], lr: [0.1, 0.2]}", 2, BASE.replace("--lr 0.05", "")))) == 8
