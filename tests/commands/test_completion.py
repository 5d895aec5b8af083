"""`mammoth-sbs completion`: what bash offers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mammoth_sbs.commands import COMMANDS, main

pytest.importorskip("shtab")
TRY = """
source %s
function=$(complete -p mammoth-sbs | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_WORDS=(%s "%s"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
$function mammoth-sbs "${COMP_WORDS[$COMP_CWORD]}" "${COMP_WORDS[$COMP_CWORD - 1]}"
echo "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("bash"):
        pytest.skip("needs bash")
    from contextlib import redirect_stdout

    file = tmp_path_factory.mktemp("completion") / "script"
    with file.open("w") as f, redirect_stdout(f):
        main(["completion", "bash"])
    return file


@pytest.mark.parametrize(("line", "begun", "offered"), [
    ("mammoth-sbs", "", [*COMMANDS]),
    ("mammoth-sbs run --model", "der", ["der", "der_sbs", "derpp", "derpp_sbs"]),
    ("mammoth-sbs run --model er_sbs --dataset", "seq-c", ["seq-cifar10", "seq-cifar100"]),
    ("mammoth-sbs run --backbone", "t", ["tiny-resnet18"]),
    ("mammoth-sbs run", "--sbs-gr", ["--sbs-grid"]),
    ("mammoth-sbs run", "--simclr_t", ["--simclr_temp"]),  # of one method only
    ("mammoth-sbs tune", "--sbs-gr", ["--sbs-grid"]),
    ("mammoth-sbs figure", "heat", ["heatmap"]),
    ("mammoth-sbs sweep", "--dry", ["--dry-run"]),
    ("mammoth-sbs data", "ex", ["export"]),
])
def test_bash_offers(script: Path, line: str, begun: str, offered: list[str]) -> None:
    done = subprocess.run(["bash", "-c", TRY % (script, line, begun)], capture_output=True, text=True)
    assert not done.stderr and done.stdout.split() == offered
