"""`mammoth-sbs doctor`, and what a user reads who gives a Mammoth that cannot work."""

from __future__ import annotations

import logging
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mammoth_sbs import commands as cli
from mammoth_sbs import host
from mammoth_sbs.errors import UserError, one_line
from tests.conftest import REPO


def python(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=REPO, env={**os.environ, **env}, capture_output=True, text=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A host that imports all of its data sets at once, as Mammoth does."""
    folder = tmp_path / "checkout"
    shutil.copytree(host.EMBEDDED, folder, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "datasets" / "__init__.py").open("a") as f:
        f.write('\nfor _file in sorted(Path(__file__).parent.glob("seq_*.py")):\n'
                '    importlib.import_module(f"datasets.{_file.stem}")\n')
    return folder


def test_doctor_finds_the_embedded_host_and_its_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half = tmp_path / "CIFAR100" / "cifar-100-python"
    half.mkdir(parents=True)
    (half / "train").touch()
    with pytest.raises(SystemExit) as end:  # for the data that is damaged
        cli.main(["doctor", "--base_path", str(tmp_path)])
    logging.disable(logging.NOTSET)
    assert end.value.code == 1
    said = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert lines[0].startswith("host: embedded, mammoth-sbs") and "all is well" not in lines
    assert lines[-2] == "what to do" and lines[-1].startswith(f"seq-cifar100: {half}: test is missing; put it there")
    for line in ("models.register_model ok", "models.xder.XDer ok", "utils.buffer.Buffer.get_data ok", "derpp-sbs ok",
                 "rpc ok", "seq-digits comes with scikit-learn",
                 "seq-cifar10 not found: downloaded when it is first used"):
        assert line in lines, said
    assert any(line.startswith("torch ") and "GPU" in line for line in lines)
    assert any(line.startswith("seq-cifar100 damaged: ") and "test is missing" in line for line in lines), said


def test_doctor_says_that_a_folder_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["doctor", "--base_path", str(tmp_path / "nowhere")])
    last = capsys.readouterr().out.splitlines()[-1]
    assert end.value.code == 1 and last.startswith(f"  --base_path {tmp_path}/nowhere: there is no such folder")
    monkeypatch.chdir(tmp_path)
    cli.main(["doctor"])  # ./data is made when it is first used
    said = capsys.readouterr().out
    logging.disable(logging.NOTSET)
    assert f"data sets under {tmp_path}/data, which is not there" in said and said.endswith("all is well\n")


def test_doctor_names_every_problem_of_a_checkout_and_what_to_do(checkout: Path) -> None:
    (checkout / "datasets" / "seq_far.py").write_text("raise ConnectionError('weights.example cannot be reached')\n")
    (checkout / "datasets" / "seq_far2.py").write_text(
        "try:\n    raise OSError('no route')\nexcept OSError as e:\n    raise RuntimeError('no weights') from e\n")
    (checkout / "datasets" / "seq_package.py").write_text("import no_such_package\n")
    wrapper = checkout / "datasets" / "utils" / "continual_dataset.py"
    wrapper.write_text(wrapper.read_text().replace("def store_masked_loaders", "def store_loaders"))
    done = python("-m", "mammoth_sbs", "doctor", "--mammoth", str(checkout))
    assert done.returncode == 1
    todo = [" ".join(line.split()) for line in done.stdout.partition("what to do\n")[2].splitlines()]
    todo = [line for line in todo if not line.startswith("quadprog:")]  # Mammoth's own GEM needs it, ours does not
    assert todo[0].startswith("datasets.utils.continual_dataset.store_masked_loaders: update Mammoth")
    offline = "go online once, or take it out of datasets/ in a copy of the checkout"
    assert todo[1:] == [f"datasets/seq_far.py: {offline}", f"datasets/seq_far2.py: {offline}",
                        "datasets/seq_package.py: pip install no_such_package"]
    assert "offline: it wants the network while it is imported (weights.example cannot be reached)" in done.stdout


def test_a_folder_that_is_no_mammoth_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"not a Mammoth checkout, it has no main\.py; give the folder that holds"):
        host.check(tmp_path / "nowhere")
    (tmp_path / "main.py").touch()
    with pytest.raises(UserError, match=r"it has no models/__init__\.py"):
        host.check(tmp_path)
    monkeypatch.setenv("MAMMOTH_ROOT", "")  # and what doctor makes of it is undone
    with pytest.raises(UserError, match=f"MAMMOTH_ROOT {tmp_path}: not a Mammoth checkout"):
        cli.main(["doctor", "--mammoth", str(tmp_path)])


@pytest.mark.parametrize(("file", "name"), [("models/__init__.py", "register_model"),
                                            ("utils/args.py", "--checkpoint_path")])
def test_a_mammoth_without_a_name_is_too_old(checkout: Path, file: str, name: str) -> None:
    text = (checkout / file).read_text()
    (checkout / file).write_text(text.replace(name, "something_else"))
    with pytest.raises(UserError, match=f"too old, its {file} has no {name}; update it to a version of 17 June 2025"):
        host.check(checkout)


@pytest.mark.parametrize(("line", "says"), [
    ("import kornia_of_mars", "Mammoth needs the package kornia_of_mars, which is not installed; "
                              "pip install kornia_of_mars, or all of its requirements.txt"),
    ("import PIL.nowhere", "needs the package PIL.nowhere, which is not installed; pip install Pillow"),
    ("raise ConnectionError('cannot reach weights.example')",
     r"seq_far\.py wants the network while it is imported \(cannot reach weights\.example\); go online once"),
    ("raise RuntimeError('no weights\\nat all') from TimeoutError()",
     r"seq_far\.py wants the network while it is imported \(no weights\); go online once"),
])
def test_what_a_mammoth_lacks_is_one_line(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "datasets" / "seq_far.py"
    file.parent.mkdir()
    file.write_text(f"{line}\n")
    says = f"^MAMMOTH_ROOT {tmp_path}: .*{says}"
    with pytest.raises(UserError, match=says) as error, host.blame_host(tmp_path):
        runpy.run_path(str(file))
    assert "\n" not in str(error.value)


def test_a_bug_of_the_host_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="of its own"), host.blame_host(tmp_path):
        raise RuntimeError("of its own")


def test_a_program_shows_a_mistake_as_one_line_and_other_errors_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    one_line(UserError, UserError("--lr 9: too much"), None)
    assert capsys.readouterr().err == "error: --lr 9: too much\n"
    one_line(ValueError, ValueError("other"), None)
    assert "ValueError: other" in capsys.readouterr().err


def test_hooks_see_a_network_that_is_called_by_its_forward() -> None:
    """As Mammoth's A-GEM calls it."""
    from mammoth_sbs.models.forward import forward_is_call

    net, seen = torch.nn.Linear(2, 2), []
    net.register_forward_hook(lambda *_: seen.append(1))
    x = torch.ones(1, 2)
    with forward_is_call(net):
        assert torch.equal(net.forward(x), net.weight.sum(1) + net.bias[None])
        net.forward(x)
    assert len(seen) == 2
    net.forward(x)
    assert len(seen) == 2 and "forward" not in vars(net)


def test_the_package_is_found_by_the_process_that_looks_for_data(tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Not installed, and in a folder that Mammoth has changed."""
    from mammoth_sbs.host import doctor

    asked = []
    monkeypatch.setattr(doctor.subprocess, "run", lambda words, env, check: asked.append(env))
    monkeypatch.setenv("MAMMOTH_ROOT", "somewhere")
    for before, wanted in ((None, [str(REPO)]), ("elsewhere", [str(REPO), "elsewhere"])):
        monkeypatch.delenv("PYTHONPATH", raising=False)
        if before:
            monkeypatch.setenv("PYTHONPATH", before)
        doctor.data(doctor.Report(), tmp_path, embedded=False)
        assert asked[-1]["PYTHONPATH"].split(os.pathsep) == wanted and "MAMMOTH_ROOT" not in asked[-1]
