"""The configurations of the paper's experiments, in configs/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import REPO


@pytest.mark.parametrize("scale", ["paper", "small"])
def test_every_experiment_has_a_configuration_that_names_its_own_folder(scale: str) -> None:
    files = sorted((REPO / "configs" / scale).glob("*.yaml"))
    small = ["pairs_cifar10_5", "surface_cifar100_5", "surface_cifar10_2", "surface_cifar10_5"]
    forgetting = ["forgetting_cifar100_2", "forgetting_cifar10_2", "forgetting_tinyimg_2"]
    matrices = ["matrices_networks", "matrices_scores", "matrices_tasks", "memory_cifar100_2", "memory_cifar10_2"]
    assert [file.stem for file in files] == [
        "bars_cifar100_5", "bars_cifar10_5", "bars_tinyimg_10", "following", *forgetting, "heatmap_cifar100_20_5k",
        "heatmap_cifar100_2_10k", "heatmap_cifar100_2_1k", "heatmap_cifar10_5_5k", "heatmap_methods_500",
        "heatmap_tinyimg_2_20k", *(["hosts_cifar10", "hosts_gem_cifar10"] if scale == "small" else []), *matrices,
        *small[: 1 if scale == "small" else 0],
        "robustness", *small[1 if scale == "small" else 4 :], "table1"]
    for file in files:
        assert re.search(rf"^name: {scale}_{file.stem}$", file.read_text(), re.MULTILINE)
        assert f"mammoth-sbs sweep configs/{scale}/{file.name}" in file.read_text()


@pytest.mark.parametrize("file", sorted((REPO / "configs").glob("*/*.yaml")),
                         ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_every_configuration_is_read_by_the_host(file: Path) -> None:
    from mammoth_sbs.experiments.config import read_config
    from mammoth_sbs.experiments.sweep import resolve

    config = read_config(file)
    runs = resolve(config)
    assert len({run.id for run in runs}) == len(config.points) * len(config.seeds)


@pytest.mark.parametrize(("name", "reference", "maps"), [
    ("small/following", "small/following", 1), ("small/robustness", "small/following", 1),
    ("frozen/following", "frozen/following", 3), ("frozen/robustness", "frozen/robustness", 10)])
def test_maps_that_are_compared_differ_in_one_thing_from_the_map_they_are_compared_with(name: str, reference: str,
                                                                                        maps: int) -> None:
    from mammoth_sbs.experiments.config import read_config
    from mammoth_sbs.experiments.sweep import resolve

    config, other = (read_config(REPO / "configs" / f"{file}.yaml") for file in (name, reference))
    expected = resolve(other)[0].args  # its first map
    pairs: dict[str, set[tuple[float, float]]] = {}
    for run in resolve(config)[: len(config.points)]:  # those of the first seed
        differ = {key for key in run.args | expected if run.args.get(key) != expected.get(key)} - {"sbs_q", "sbs_s"}
        if not differ:
            continue  # the reference itself
        [changed] = differ - ({"optim_wd", "lr"} if "optimizer" in differ else set())
        pairs.setdefault(f"{changed} {run.args.get(changed)}", set()).add((run.args["sbs_q"], run.args["sbs_s"]))
    assert config.seeds == other.seeds
    assert len(pairs) == maps and {len(found) for found in pairs.values()} == {13}


def test_the_papers_table_1_is_eight_samplers_on_ten_columns_with_the_papers_optimiser() -> None:
    from mammoth_sbs.experiments.config import read_config
    from mammoth_sbs.experiments.sweep import resolve

    runs = resolve(read_config(REPO / "configs" / "paper" / "table1.yaml"))
    assert len(runs) == 8 * 10 * 10
    for run in runs:
        assert {key: run.args[key] for key in ("optimizer", "lr", "optim_mom", "optim_wd", "lr_scheduler", "n_epochs",
                                               "backbone")} == {
            "optimizer": "sgd", "lr": 0.1, "optim_mom": 0.9, "optim_wd": 0.0005, "lr_scheduler": "cosine",
            "n_epochs": 100, "backbone": "resnet18"}
