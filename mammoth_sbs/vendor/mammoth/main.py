"""The embedded host's way in, with the names of Mammoth's: main(), parse_args(), initialize()."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

import yaml  # noqa: E402

from mammoth_sbs.errors import UserError, one_line  # noqa: E402

import datasets  # noqa: E402
from backbone import REGISTERED_BACKBONES, get_backbone  # noqa: E402
from datasets.utils.continual_dataset import ContinualDataset  # noqa: E402
from models import get_model, get_model_names  # noqa: E402
from models.utils.continual_model import ContinualModel  # noqa: E402
from utils import args as flags  # noqa: E402
from utils.checkpoints import read_checkpoint  # noqa: E402
from utils.conf import base_path, get_checkpoint_path, get_device, set_random_seed  # noqa: E402
from utils.training import train  # noqa: E402


def best_config(model: str, dataset: str, buffer_size: int | None) -> dict:
    """The method's published hyper-parameters on a data set; the nearest buffer size's, if there is none for this."""
    file = HERE / "models" / "config" / f"{model}.yaml"
    config = flags.load_yaml(file).get(dataset) if file.exists() else None
    if not config:
        raise UserError(f"--model_config best: there is none for {model} on {dataset}; give --lr and the rest yourself")
    sizes = [key for key in config if isinstance(key, int)]
    general = {key: value for key, value in config.items() if not isinstance(key, int)}
    if not sizes:
        return general
    return {**general, **config[min(sizes, key=lambda size: abs(size - (buffer_size or 0)))]}


def build_parser(cmd: list[str]) -> flags.ArgumentParser:
    """All flags that the method, data set and network in `cmd` have, with the defaults that hold for them.

    What wins, from the strongest: the command line, a loaded checkpoint, `--model_config`, the method,
    `--dataset_config`, the data set.
    """
    parser = flags.ArgumentParser(prog="main.py", allow_abbrev=False, add_help=False,
                                  description="Continual learning: a method learns a data set task by task.")
    flags.add_initial_args(parser)
    known = parser.parse_known_args(cmd)[0]
    wants_help = "-h" in cmd or "--help" in cmd
    saved = read_checkpoint(known.loadcheck)["args"] if known.loadcheck else {}
    for flag, names in (("model", get_model_names()), ("dataset", datasets.get_dataset_names())):
        given = getattr(known, flag) or saved.get(flag)
        if given is None and wants_help:
            given = {"model": "er", "dataset": "seq-digits"}[flag]
        if given is None:
            raise UserError(f"--{flag} is missing; there are: {', '.join(sorted(names))}")
        setattr(known, flag, flags.one_of(flag, names, given))
    known.dataset_config = known.dataset_config or saved.get("dataset_config")
    defaults = dict(datasets.get_dataset_names()[known.dataset].DEFAULTS)
    defaults |= flags.dataset_config(known.dataset, known.dataset_config)
    parser.set_defaults(model=known.model, dataset=known.dataset, **defaults)

    get_model_names()[known.model].get_parser(parser.add_argument_group(f"method {known.model}"))  # type: ignore[arg-type]
    defaults |= {key: value for key, value in parser._defaults.items() if key not in ("model", "dataset")}
    if known.model_config == "best":
        name = getattr(get_model_names()[known.model], "stock", known.model)  # a plugin may extend a stock method
        defaults |= best_config(name, known.dataset, _given_int(cmd, "--buffer_size"))
    known.backbone = flags.one_of("backbone", REGISTERED_BACKBONES,
                                  known.backbone or saved.get("backbone") or defaults["backbone"])
    defaults["backbone"] = known.backbone
    flags.backbone_args(parser, known.backbone)
    flags.add_experiment_args(parser)
    flags.add_management_args(parser)
    parser.add_argument("--shared_first_task", help="file that holds the first task once it is trained: made by the "
                        "first of several runs that differ only after it, used by the others")
    parser.add_argument("-h", "--help", action="help", default=argparse.SUPPRESS, help="show this and exit")
    parser.set_defaults(**defaults)
    parser.own_defaults = {action.dest: action.default for action in parser._actions}
    defaults |= {key: value for key, value in saved.items() if key not in ("loadcheck", "start_from", "stop_after")}
    parser.set_defaults(**defaults)
    for action in parser._actions:
        if defaults.get(action.dest) is not None:
            action.required = False
    return parser


def _given_int(cmd: list[str], flag: str) -> int | None:
    """The value of a whole-number flag that is typed in `cmd`."""
    for i, word in enumerate(cmd):
        value = word.partition("=")[2] or (cmd[i + 1] if i + 1 < len(cmd) else "")
        if word.split("=")[0] == flag and value.isdigit():
            return int(value)
    return None


def parse_args(cmd: list[str] | None = None) -> argparse.Namespace:
    """The resolved arguments of a command line."""
    cmd = sys.argv[1:] if cmd is None else list(cmd)
    flags.no_duplicate_flags(cmd)
    try:
        parser = build_parser(cmd)
    except yaml.YAMLError as e:
        raise UserError(f"a config file is not YAML: {e}") from None
    args = parser.parse_args(cmd)
    args.model = args.model.replace("_", "-")
    args.dataset = args.dataset.replace("_", "-")
    args.backbone = args.backbone.replace("_", "-")
    if args.lr <= 0:
        raise UserError(f"--lr must be above 0, not {args.lr:g}")
    if args.lr_scheduler == "None":
        args.lr_scheduler = None
    if args.lr_scheduler == "multisteplr" and not args.lr_milestones:
        raise UserError("--lr_scheduler multisteplr needs --lr_milestones, the epochs at which the rate goes down")
    if args.validation is not None and not 0 < args.validation < 100:
        raise UserError(f"--validation is a percentage above 0 and below 100, not {args.validation:g}")
    if args.joint and (args.start_from is not None or args.stop_after is not None):
        raise UserError("--joint 1 has one task: leave out --start_from and --stop_after")
    if args.optim_nesterov and not args.optim_mom:
        raise UserError("--optim_nesterov 1 needs --optim_mom above 0")
    if getattr(args, "minibatch_size", 0) is None:
        args.minibatch_size = args.batch_size
    if args.seed is None:  # drawn, so that even this run can be repeated
        args.seed = int.from_bytes(__import__("os").urandom(4), "little")
    set_random_seed(args.seed)
    args.command = "python main.py " + flags.command_line(args, parser)
    return args


def initialize(args: argparse.Namespace | None = None) -> tuple[ContinualModel, ContinualDataset, argparse.Namespace]:
    """Data set, network and method."""
    args = parse_args() if args is None else args
    base_path(args.base_path)
    get_checkpoint_path(args.checkpoint_path)
    args.device = get_device(args.device)
    dataset = datasets.get_dataset(args)
    args.num_classes, args.n_tasks = dataset.N_CLASSES, dataset.N_TASKS
    backbone = get_backbone(args, dataset.input_shape)
    model = get_model(args, backbone, dataset.get_loss(), dataset.get_transform(), dataset)
    return model, dataset, args


def main(args: argparse.Namespace | None = None) -> None:
    """Read the command line, then train."""
    train(*initialize(args))


if __name__ == "__main__":
    sys.excepthook = one_line
    main()
