"""The result store: packed results are read like a folder, versions that give the same numbers count as one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mammoth_sbs.commands import main
from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments import store
from mammoth_sbs.experiments.config import read_config
from mammoth_sbs.experiments.runs import resolve
from mammoth_sbs.experiments.store import FIRST_FLAGS, Store, canonical, named, read_results, version
from tests.conftest import REPO


def record(number: int, **changes: Any) -> dict[str, Any]:
    """The result of a run."""
    return {"id": f"{number:016x}", "version": version(), "args": {"seed": number}, "results": {"x": number},
            "volatile": {"wall_time": 1.0}, **changes}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """A result folder with these runs."""

    def write(*records: dict[str, Any]) -> Path:
        folder = tmp_path / "sweep"
        folder.mkdir(exist_ok=True)
        for one in records:
            (folder / f"{one['id']}.json").write_text(json.dumps(one, indent=1))
        return folder

    return write


def test_a_packed_folder_is_one_sorted_file_and_reads_the_same(write: Callable[..., Path]) -> None:
    folder = write(*(record(n) for n in (3, 1, 2)))
    before = read_results(folder)
    main(["pack", str(folder)])
    file = Path(f"{folder}.jsonl")
    assert not folder.exists()
    assert [json.loads(line)["id"][-1] for line in file.read_text().splitlines()] == ["1", "2", "3"]
    assert read_results(folder) == read_results(file) == before
    assert list(before) == [f"{n:016x}" for n in (1, 2, 3)]


def test_a_sweep_that_goes_on_is_packed_again_and_lines_of_old_runs_stay(write: Callable[..., Path]) -> None:
    folder = write(record(2))
    main(["pack", str(folder)])
    line = Path(f"{folder}.jsonl").read_text()
    write(record(1))
    assert list(read_results(folder)) == [f"{n:016x}" for n in (2, 1)]
    main(["pack", str(folder)])
    assert line in Path(f"{folder}.jsonl").read_text()
    assert set(read_results(folder)) == {f"{n:016x}" for n in (1, 2)}


def test_a_kill_while_packing_loses_nothing(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the file and the removal of what it holds, every run is there twice, and counts once."""
    folder = write(record(1), record(2))

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "unlink", killed)
        Store(folder).pack()
    assert len(list(folder.glob("*.json"))) == 2
    assert len(read_results(folder)) == 2
    main(["pack", str(folder)])
    assert not folder.exists()


def test_the_same_run_with_other_results_is_refused(write: Callable[..., Path]) -> None:
    folder = write(record(1))
    main(["pack", str(folder)])
    write(record(1, results={"x": 9}))
    with pytest.raises(UserError, match=r"0001\.json: .*sweep\.jsonl has the same run with other results"):
        read_results(folder)


def test_a_result_that_knows_more_metrics_is_the_same_result(write: Callable[..., Path]) -> None:
    folder = write(record(1, results={"task_il": {"final": 3.0}}))
    main(["pack", str(folder)])
    write(record(1, results={"task_il": {"final": 3.0, "average_incremental": 4.0}}))
    assert len(read_results(folder)) == 1
    write(record(1, results={"task_il": {"final": 3.5, "average_incremental": 4.0}}))
    with pytest.raises(UserError, match="the same run with other results"):
        read_results(folder)


def test_a_damaged_line_is_named(write: Callable[..., Path]) -> None:
    folder = write(record(1))
    main(["pack", str(folder)])
    with open(f"{folder}.jsonl", "a") as f:
        f.write('{"id": 1')
    with pytest.raises(UserError, match=r"sweep\.jsonl, line 2: not JSON; move it away"):
        read_results(folder)


def test_other_files_in_a_folder_outlive_its_packing(write: Callable[..., Path]) -> None:
    folder = write(record(1))
    (folder / "0.log").write_text("why it failed")
    main(["pack", str(folder)])
    assert (folder / "0.log").read_text() == "why it failed"


def test_an_empty_folder_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no finished run"):
        main(["pack", str(tmp_path)])
    assert not Path(f"{tmp_path}.jsonl").exists()


def test_versions_that_give_the_same_numbers_count_as_one(write: Callable[..., Path], tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    versions = tmp_path / "versions.txt"
    versions.write_text("# a comment about aaa\naaa bbb ccc\nddd\n")
    monkeypatch.setattr(store, "SAME_NUMBERS", versions)
    canonical.cache_clear()
    try:
        assert canonical("ccc-torch2.13.0") == canonical("aaa-torch2.13.0") == "aaa-torch2.13.0"
        assert canonical("ccc-torch2.14.0") != canonical("aaa-torch2.13.0")
        assert canonical("ddd-torch2.13.0") != canonical("aaa-torch2.13.0")
        folder = write(record(1, version="aaa-torch2"), record(2, version="ccc-torch2"))
        assert len(read_results(folder)) == len(read_results(folder, {"bbb-torch2"})) == 2
        write(record(3, version="ddd-torch2"))
        with pytest.raises(UserError, match="holds results of other code.*--accept-version ddd-torch2 "):
            read_results(folder, {"bbb-torch2"})
    finally:
        canonical.cache_clear()


def test_a_flag_that_comes_later_leaves_the_ids_of_runs_without_it() -> None:
    args = dict.fromkeys(FIRST_FLAGS)
    assert named({**args, "brand_new": 0}) == named({**args, "brand_new": None}) == args
    assert named({**args, "brand_new": 3}) == {**args, "brand_new": 3}


def test_what_a_killed_sweep_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    left = [".0123456789abcdef.json.x1y2z3", ".first_tasks/.0123456789abcdef.pt.q9w8e7"]
    kept = ["0123456789abcdef.json", "0123456789abcdef.log", ".first_tasks/0123456789abcdef.pt", ".hidden", "notes.txt"]
    for name in (*left, *kept):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    with Store(tmp_path).locked():
        assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == \
            sorted([*kept, ".lock"])


@pytest.mark.parametrize("name", ["bars_cifar10_5", "pairs_cifar10_5"])
def test_committed_results_are_those_of_their_configuration(name: str) -> None:
    """All that were run are among the runs that the configuration asks for today, under the same ids."""
    asked = {run.id for run in resolve(read_config(REPO / "configs" / "small" / f"{name}.yaml"))}
    assert set(read_results(REPO / "results" / f"small_{name}")) <= asked


def test_no_lock_is_committed() -> None:
    assert not list((REPO / "results").glob("*.lock"))
    assert "/results/**/.lock" in (REPO / ".gitignore").read_text().splitlines()
