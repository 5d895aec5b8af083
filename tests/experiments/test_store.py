"""The result store: packed results are read like a folder, versions that give the same numbers count as one."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mammoth_sbs.commands import main
from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments import store
from mammoth_sbs.experiments.config import read_config
from mammoth_sbs.experiments.runs import resolve
from mammoth_sbs.experiments.schema import id_of
from mammoth_sbs.experiments.store import FIRST_FLAGS, Store, canonical, named, read_results, version
from tests.conftest import REPO


def record(number: int, final: float = 50.0, **changes: Any) -> dict[str, Any]:
    """The result of a run."""
    args = {"model": "er", "dataset": "seq-digits", "seed": number}
    setting = {"matrix": [[90.0], [final, final]], "final": final, "forgetting": 90.0 - final}
    return {"id": id_of(args, 1), "version": version(), "args": args, "threads": 1, "seed": number,
            "results": {"class_il": setting, "task_il": setting},
            "volatile": {"wall_time": 1.0, "command": "python main.py"}, **changes}


IDS = {n: record(n)["id"] for n in (1, 2, 3)}


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
    assert [json.loads(line)["id"] for line in file.read_text().splitlines()] == sorted(IDS.values())
    assert read_results(folder) == read_results(file) == before
    assert list(before) == sorted(IDS.values())


def test_a_sweep_that_goes_on_is_packed_again_and_lines_of_old_runs_stay(write: Callable[..., Path]) -> None:
    folder = write(record(2))
    main(["pack", str(folder)])
    line = Path(f"{folder}.jsonl").read_text()
    write(record(1))
    assert list(read_results(folder)) == [IDS[2], IDS[1]]
    main(["pack", str(folder)])
    assert line in Path(f"{folder}.jsonl").read_text()
    assert set(read_results(folder)) == {IDS[1], IDS[2]}


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
    write(record(1, 9.0))
    with pytest.raises(UserError, match=rf"{IDS[1]}\.json: .*sweep\.jsonl has the same run with other results"):
        read_results(folder)
    with open(f"{folder}.jsonl", "a", encoding="utf-8") as f:
        f.write(json.dumps(record(1, 9.0)))
    with pytest.raises(UserError, match=r"sweep\.jsonl, line 2: the file has the same run with other results"):
        read_results(Path(f"{folder}.jsonl"))


def test_a_result_that_knows_more_metrics_is_the_same_result(write: Callable[..., Path]) -> None:
    folder = write(record(1, 30.0))
    main(["pack", str(folder)])
    more = record(1, 30.0)
    more["results"]["task_il"] = {**more["results"]["task_il"], "average_incremental": 60.0}
    write(more)
    assert len(read_results(folder)) == 1
    write(record(1, 31.0))
    with pytest.raises(UserError, match="the same run with other results"):
        read_results(folder)


def test_a_damaged_line_is_named(write: Callable[..., Path]) -> None:
    folder = write(record(1))
    main(["pack", str(folder)])
    with open(f"{folder}.jsonl", "a") as f:
        f.write('{"id": 1')
    with pytest.raises(UserError, match=r"sweep\.jsonl, line 2: not JSON; move it away"):
        read_results(folder)


def test_a_file_under_another_name_is_named(write: Callable[..., Path]) -> None:
    folder = write(record(1))
    (folder / f"{IDS[1]}.json").rename(folder / f"{IDS[2]}.json")
    with pytest.raises(UserError, match=f"{IDS[2]}.json: holds run {IDS[1]}; give it back that name"):
        read_results(folder)


def test_how_long_the_search_took_may_differ(tmp_path: Path) -> None:
    """The same run made twice gives the same file but for what stands under `volatile`."""
    found = []
    for seconds in (1.0, 2.0):
        point = {"q": 0.2, "s": 0.0, "old": 90.0, "rotation": 30.0, "forgotten": 0.0, "stored": 9, "seconds": seconds}
        choice = {"task": 1, "q": 0.2, "s": 0.0, "points": [point, dict(point)]}
        one = {**record(1), "sbs": {"tasks": [{"task": 1, "choice": choice}, {"task": 2, "choice": None}]},
               **dict.fromkeys(("commit", "versions", "wall_time", "cpu_time", "node"), seconds)}
        folder = tmp_path / str(seconds)
        Store(folder).save(IDS[1], "python main.py", one["args"], 1, one)
        (result,) = read_results(folder).values()
        assert result.pop("volatile")["seconds"] == [[seconds, seconds]]
        assert point["seconds"] == seconds  # what the run holds is not touched
        found.append(result)
    assert found[0] == found[1] and len(found[0]["sbs"]["tasks"][0]["choice"]["points"]) == 2


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
        with pytest.raises(UserError, match="holds results of other code.*Give --accept-version ddd-torch2 to"):
            read_results(folder, {"bbb-torch2"})
        with pytest.raises(UserError, match=r"Give --accept-version \S+ --accept-version \S+ to count them as"):
            read_results(folder)  # both, in one go
    finally:
        canonical.cache_clear()


def test_a_flag_that_comes_later_leaves_the_ids_of_runs_without_it() -> None:
    args = dict.fromkeys(FIRST_FLAGS)
    assert named({**args, "brand_new": 0}) == named({**args, "brand_new": None}) == args
    assert named({**args, "brand_new": 3}) == {**args, "brand_new": 3}


def test_what_a_killed_sweep_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    left = [".sbs-partial-x1y2z3", ".first_tasks/.sbs-partial-q9w8e7"]
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


def test_a_disk_that_knows_no_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = [0] * 9

    def no_locks(*_: Any) -> None:
        tries.pop()
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(store.fcntl, "flock", no_locks)
    with pytest.raises(UserError, match="^--results .*: cannot be locked: No locks available; give a folder"), \
            Store(tmp_path).locked():
        pass


def test_flags_that_came_later_count_when_they_are_on() -> None:
    kept = {"on": True, "one": 1, "some": [0], "text": "x", "low": 0.5}
    off: dict[str, Any] = {"off": False, "none": None, "zero": 0, "empty": "", "nothing": []}
    assert named({**kept, **off}) == kept and named({"seed": 0, "joint": False}) == {"seed": 0, "joint": False}


def test_the_version_that_is_running_is_named_if_it_is_accepted(write: Callable[..., Path]) -> None:
    folder, here = write(record(1, version="eee-torch2")), f"(this is {version()})"
    assert len(read_results(folder)) == 1  # one version, whatever it is
    for accept, says in (({version()}, True), ({"fff-torch2"}, False), ({version(), "fff-torch2"}, True)):
        with pytest.raises(UserError, match="1 of eee-torch2.*Give --accept-version eee-torch2 to count") as error:
            read_results(folder, accept)
        assert (here in str(error.value)) is says
    write(record(2, version="fff-torch2"))
    with pytest.raises(UserError, match=r"other code: 1 of ...-torch2, 1 of ...-torch2\. Give --accept"):
        read_results(folder)


def test_what_is_no_result_in_a_folder_is_named_and_other_files_are_left_alone(write: Callable[..., Path]) -> None:
    folder = write(record(1))
    (folder / "notes.json").write_text("{")
    (folder / "0123456789abcdeg.json").write_text("{")  # no name of a run
    assert list(read_results(folder)) == [IDS[1]]
    bad = folder / "0123456789abcdef.json"
    bad.mkdir()
    with pytest.raises(UserError, match="0123456789abcdef.json: Is a directory; move it away$"):
        read_results(folder)
    bad.rmdir()
    for content, says in ((b"{", "not JSON"), (b"\xff", "not JSON"), (b"{}", "not the result of a run: .*"),
                          (b"[" * 100_000, "not JSON")):
        bad.write_bytes(content)
        with pytest.raises(UserError, match=f"0123456789abcdef.json: {says}; move it away$"):
            read_results(folder)


def test_a_folder_may_have_the_name_of_a_packed_file(write: Callable[..., Path], tmp_path: Path) -> None:
    folder = write(record(1)).rename(tmp_path / "x.jsonl")
    assert list(read_results(folder)) == [IDS[1]] and store.is_results(folder)
    assert not store.is_results(tmp_path / "y.jsonl") and read_results(tmp_path / "y.jsonl") == {}


def test_a_lock_that_is_given_back_soon_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the workers of a sweep that was killed a moment ago do."""
    tries, waited, tried = [1, 2, 3], list[float](), list[Any]()

    def busy(*_: Any) -> None:
        if tries.pop() > 1:
            raise BlockingIOError

    monkeypatch.setattr(store.fcntl, "flock", busy)
    monkeypatch.setattr(store.time, "sleep", waited.append)
    monkeypatch.setattr(store, "try_to_write", lambda *of: tried.append(of[:3]))
    one = Store(tmp_path / "a" / "out")
    with one.locked():
        assert one.lock >= 0 and not (one.folder / ".lock").stat().st_mode & 0o111
    assert len(waited) == 2 and min(waited) > 0 and not tries
    assert tried == [(one.folder / "a.json", "results", "--results")]  # before the first run, not after it
    one.check()  # nothing is locked any more
    one.forget_first_tasks()  # there are none


def test_nothing_is_saved_in_a_folder_that_was_removed(tmp_path: Path) -> None:
    import shutil

    one, made = Store(tmp_path / "out"), record(1)
    with one.locked():
        shutil.rmtree(one.folder)
        with pytest.raises(UserError, match="was removed while the sweep was running"):
            one.save(made["id"], "x", made["args"], 1, made)
    assert not one.folder.exists()
