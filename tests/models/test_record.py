"""The run's result file, and `--sbs-record`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mammoth_sbs.core.record import load_matrix
from tests.models.conftest import SMALL


def test_run_file_and_record(run: Callable[..., dict], tmp_path) -> None:  # noqa: ANN001
    file = tmp_path / "record.npz"
    out = run("er_sbs", f"{SMALL} --buffer_size 30 --stop_after 2 --sbs-q .1 --sbs-s .3 --sbs-record {file}")
    assert {key: out["sbs"][key] for key in ("sampler", "q", "s", "scope")} == {
        "sampler": "speed", "q": 0.1, "s": 0.3, "scope": "task"}
    record = np.load(file)
    for t in (1, 2):
        m = load_matrix(record, t)
        speed, note = record[f"task{t}_speed"], out["sbs"]["tasks"][t - 1]
        assert m.shape == (2 * (3 - t), 40)  # its own epochs, and those of later tasks
        assert np.allclose(m[:2].mean(0), speed)
        assert np.isclose(speed.mean(), note["speed_mean"])
        assert len(record[f"task{t}_stored"]) == note["stored"]
        assert len(record[f"task{t}_indices"]) == len(record[f"task{t}_labels"]) == 40
        # at the end of a task, M on test data is what evaluation measures
        test = load_matrix(record, t, test=True)
        for after in range(t, 3):
            accuracy = out["results"]["task_il"]["matrix"][after - 1][t - 1]
            assert np.isclose(100 * test[2 * (after - t + 1) - 1].mean(), accuracy)
    # recording changes nothing
    assert run("er_sbs", f"{SMALL} --buffer_size 30 --stop_after 2 --sbs-q .1 --sbs-s .3")["results"] == out["results"]
