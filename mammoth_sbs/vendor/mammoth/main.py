"""The embedded host's way in, with the names of Mammoth's: main(), parse_args(), initialize()."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

import yaml  # noqa: E402

from mammoth_sbs.errors import UserError, one_line  # noqa: E402
from mammoth_sbs.files import read_yaml  # noqa: E402
from mammoth_sbs.parser import program, spelled  # noqa: E402
from mammoth_sbs.watch import say, warn  # noqa: E402

import datasets  # noqa: E402
from backbone import REGISTERED_BACKBONES, backbone_flags, get_backbone, known_backbone  # noqa: E402
from backbone.pretrained import digest_of_weights, has_trunk  # noqa: E402
from datasets.utils.content import name_content  # noqa: E402
from datasets.utils.continual_dataset import ContinualDataset  # noqa: E402
from datasets.utils.own import OTHERWISE  # noqa: E402
from datasets.utils.streams import add_stream_flags  # noqa: E402
from models import add_models, get_model, get_model_names  # noqa: E402
from models.utils.continual_model import ContinualModel  # noqa: E402
from utils import args as flags  # noqa: E402
from utils.checkpoints import read_checkpoint  # noqa: E402
from utils.compiled import CannotCompile, compile_network  # noqa: E402
from utils.conf import (  # noqa: E402
    base_path,
    get_checkpoint_path,
    get_device,
    keep_memory,
    set_precision,
    set_random_seed,
)
from utils.run import Run  # noqa: E402
from utils.training import train  # noqa: E402


def best_config(model: str, dataset: str, buffer_size: int | None) -> dict:
    """The method's published hyper-parameters on a data set; the nearest buffer size's, if there is none for this."""
    file = HERE / "models" / "config" / f"{model}.yaml"
    config = (read_yaml(file) if file.exists() else {}).get(dataset) or {}
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
    parser = flags.ArgumentParser(prog=program(), usage="%(prog)s --model MODEL --dataset DATASET [flags]",
                                  add_help=False)
    flags.add_initial_args(parser)
    known = parser.parse_known_args(cmd)[0]
    saved = read_checkpoint(known.loadcheck)["args"] if known.loadcheck else {}
    if saved.get("extra_models") and not known.extra_models:
        raise UserError(f"--loadcheck {known.loadcheck}: its run had --extra_models {saved['extra_models']}; give that "
                        "flag too, for no checkpoint says which files are executed")
    parser.set_defaults(extra_code=add_models(known.extra_models) if known.extra_models else None)
    parser.description = names()
    models = get_model_names()
    for flag, there in (("model", models), ("dataset", datasets.get_dataset_names())):
        given = getattr(known, flag) or saved.get(flag)
        if given is None and flag == "dataset" and wants_help(cmd):
            given = "seq-digits"
        if given is None:
            raise UserError(f"--{flag} is missing; there are: {', '.join(sorted(there))}")
        setattr(known, flag, flags.one_of(flag, there, given))
    known.dataset_config = known.dataset_config or saved.get("dataset_config")
    defaults = dict(datasets.get_dataset_names()[known.dataset].DEFAULTS)
    defaults |= flags.dataset_config(known.dataset, known.dataset_config)
    origins = dict.fromkeys(defaults, known.dataset)
    parser.set_defaults(model=known.model, dataset=known.dataset, **defaults)

    method = parser.add_argument_group(f"method {known.model}")
    models[known.model].get_parser(method)  # type: ignore[arg-type]
    changed = {key: value for key, value in parser._defaults.items() if key not in ("model", "dataset")}
    origins |= {key: known.model for key in changed if changed[key] != defaults.get(key)}
    defaults |= changed
    name = getattr(models[known.model], "stock", known.model)  # a plugin may extend a stock method
    best = best_config(name, known.dataset, _given_int(cmd, "--buffer_size"))
    if known.model_config == "best":
        if not best:
            raise UserError(f"--model_config best: there is none for {name} on {known.dataset}; give --lr and the rest "
                            "yourself")
        defaults |= best
    origins |= {key: f"{name}'s best config" for key, value in best.items() if defaults.get(key) == value}
    if known.online or saved.get("online"):
        online = {key: value for key, value in flags.ONLINE.items()
                  if key != "minibatch_size" or any(action.dest == key for action in parser._actions)}
        defaults |= online
        origins |= dict.fromkeys(online, "--online")
    known.backbone = known_backbone(known.backbone or saved.get("backbone") or defaults["backbone"])
    flags.one_of("backbone", REGISTERED_BACKBONES, known.backbone)
    defaults["backbone"] = known.backbone
    flags.add_experiment_args(parser, defaults.get("n_tasks", datasets.get_dataset_names()[known.dataset].N_TASKS))
    add_stream_flags(parser)
    flags.add_management_args(parser)
    flags.add_board_args(parser)
    flags.add_flags(parser, f"network {known.backbone}", backbone_flags(known.backbone))
    flags.add_flags(parser, f"data set {known.dataset}", datasets.dataset_flags(known.dataset))
    parser.add_argument("--shared_first_task", type=flags.text,
                        help="file that holds the first task once it is trained: made by the first of several runs "
                             "that differ only after it, used by the others")
    parser.add_argument("-h", "--help", action="help", default=argparse.SUPPRESS, help="show this and exit")
    parser._action_groups.insert(0, parser._action_groups.pop(parser._action_groups.index(method)))
    parser.set_defaults(**defaults)
    parser.own_defaults = {action.dest: action.default for action in parser._actions}
    of_this_start = ("loadcheck", "start_from", "stop_after", "resume")
    saved = {key: value for key, value in saved.items() if key not in of_this_start}
    origins |= {key: "the checkpoint" for key in saved if saved[key] != defaults.get(key)}
    defaults |= saved
    parser.set_defaults(**defaults)
    for action in parser._actions:
        if action.dest in origins:
            action.origin = f", by {origins[action.dest]}"  # type: ignore[attr-defined]
        if defaults.get(action.dest) is not None:
            action.required = False
    return parser


def wants_help(cmd: list[str]) -> bool:
    return "-h" in cmd or "--help" in cmd


def names() -> str:
    """What `--model`, `--dataset` and `--backbone` take, a line each."""
    models = get_model_names()
    stock = [name for name in models if f"{name}-sbs" in models]
    others = [name for name in models if name.removesuffix("-sbs") not in stock]
    return "\n".join([f"models     {' '.join(stock)}, each also as _sbs; {' '.join(others)}",
                      f"data sets  {' '.join(datasets.get_dataset_names())}",
                      f"networks   {' '.join(name for name in sorted(REGISTERED_BACKBONES) if ':' not in name)} "
                      "timm:NAME"])


OVERVIEW = """\
usage: {prog} --model MODEL --dataset DATASET [flags]

A method learns the classes of a data set task by task, and of old tasks it has no more than a small replay buffer.
Three lines compare what may fill that buffer:

  {prog} --model derpp --model_config best --dataset seq-digits --buffer_size 100
      stock: the method as it is, with a buffer of its own
  {prog} --model derpp_sbs --dataset seq-digits --buffer_size 100 --sampler uniform
      uniform: filled at the end of each task, any example as likely as another
  {prog} --model derpp_sbs --dataset seq-digits --buffer_size 100
      SBS: likewise, from a band of the task without its quickest and its slowest learned examples

After each task they print two accuracies: Class-IL, among all classes so far, and Task-IL, when it is known which
task an image is of.

{names}

{prog} --model derpp_sbs --dataset seq-cifar100 --help lists the flags of these with their defaults."""


def _given_int(cmd: list[str], flag: str) -> int | None:
    """The value of a whole-number flag that is typed in `cmd`."""
    for i, word in enumerate(cmd):
        value = word.partition("=")[2] or (cmd[i + 1] if i + 1 < len(cmd) else "")
        if spelled(word.split("=")[0]) == flag and value.isdigit():
            return int(value)
    return None


def parse_args(cmd: list[str] | None = None) -> argparse.Namespace:
    """The resolved arguments of a command line."""
    cmd = sys.argv[1:] if cmd is None else list(cmd)
    if wants_help(cmd) and not any(spelled(word.split("=")[0]) in ("--model", "--loadcheck") for word in cmd):
        say(OVERVIEW.format(prog=program(), names=names()))
        sys.exit()
    flags.no_duplicate_flags(cmd)
    try:
        parser = build_parser(cmd)
    except yaml.YAMLError as e:
        raise UserError(f"a config file is not YAML: {e}") from None
    args = parser.parse_args(cmd)
    args.model = args.model.replace("_", "-")
    args.dataset = args.dataset.replace("_", "-")
    args.backbone = known_backbone(args.backbone)
    if getattr(args, "weights", None):  # wherever the file lies
        args.weights_code = digest_of_weights(args)[:12]
    name_content(args)
    if args.lr_scheduler == "None":
        args.lr_scheduler = None
    if args.lr_scheduler == "multisteplr" and not args.lr_milestones:
        raise UserError("--lr_scheduler multisteplr needs --lr_milestones, the epochs at which the rate goes down")
    if args.joint and (args.start_from is not None or args.stop_after is not None):
        raise UserError("--joint 1 has one task: leave out --start_from and --stop_after")
    if args.start_from and args.loadcheck is None:
        raise UserError(f"--start_from {args.start_from}: the tasks before it would not be learned at all; give "
                        "--loadcheck with the checkpoint of a run that has learned them")
    if args.resume and (args.loadcheck is not None or args.start_from is not None):
        raise UserError("--resume finds the checkpoint itself: leave out --loadcheck and --start_from")
    if args.resume and args.seed is None:
        raise UserError("--resume: give --seed too; without it every start draws another, and is another run")
    if args.resume:
        args.savecheck = args.savecheck or "epoch"
    if args.optim_nesterov and not args.optim_mom:
        raise UserError("--optim_nesterov 1 needs --optim_mom above 0")
    if getattr(args, "minibatch_size", 0) is None:
        args.minibatch_size = args.batch_size
    if getattr(args, "size", 0) is None and has_trunk(args) and (args.pretrained or args.weights) \
            and args.image_size > OTHERWISE:  # the trunk is to see the pictures, not what is left of them
        args.size = min(args.image_size, 512)  # the largest that --size takes
    if args.seed is None:  # drawn, so that even this run can be repeated
        args.seed = int.from_bytes(__import__("os").urandom(4), "little")
    set_random_seed(args.seed)
    args.command = f"{program()} " + flags.command_line(args, parser)
    logging.debug(args)
    return args


def prepare(args: argparse.Namespace) -> ContinualDataset:
    """The data set; with it the cache has what the run will look for there: decoded images, features of a trunk."""
    base_path(args.base_path)
    get_device(args.device)
    return datasets.get_dataset(args)


def initialize(args: argparse.Namespace | None = None,
               must_compile: bool = False) -> tuple[ContinualModel, ContinualDataset, argparse.Namespace]:
    """Data set, network and method. Without a compiler `--compile 1` goes on eagerly, unless it must not."""
    args = parse_args() if args is None else args
    keep_memory()
    for line in flags.unused(args):
        warn(line)
    base_path(args.base_path)
    get_checkpoint_path(args.checkpoint_path)
    args.device = get_device(args.device)
    set_precision(args.code_optimization, args.device)
    args.compile = args.compile or args.code_optimization == 3
    dataset = datasets.get_dataset(args)
    args.num_classes, args.n_tasks = dataset.N_CLASSES, dataset.N_TASKS
    for flag, tasks in (("--stop_after", args.stop_after), ("--start_from", args.start_from and args.start_from + 1)):
        if tasks is not None and tasks > dataset.N_TASKS:
            raise UserError(f"{flag} {getattr(args, flag[2:])}: {args.dataset} is cut into {dataset.N_TASKS} tasks "
                            f"here; give at most {dataset.N_TASKS - (flag == '--start_from')}")
    logging.info(f"Using backbone: {args.backbone}")
    backbone = get_backbone(args, dataset.input_shape)
    model = get_model(args, backbone, dataset.get_loss(), dataset.get_transform(), dataset)
    if (args.blurry or args.drift) and "general-continual" not in model.COMPATIBILITY:
        raise UserError(f"--model {args.model}: needs tasks with boundaries; leave out --blurry and --drift, or take "
                        "one of er, der, derpp, sgd")
    if args.compile:
        try:
            compile_network(model.net, dataset.input_shape)
        except CannotCompile as e:
            if must_compile:
                raise
            warn(f"{e}; going on without")
            args.compile = False
    return model, dataset, args


def check_places(model: ContinualModel, dataset: ContinualDataset, args: argparse.Namespace) -> None:
    """What `train` finds out before its first step, without making it: where it goes on, and where it cannot write."""
    Run(model, dataset, args).prepare()


def main(args: argparse.Namespace | None = None) -> dict[str, Any]:
    """Read the command line, then train; returns what the result file holds."""
    model, dataset, args = initialize(args)
    record = train(model, dataset, args)
    model.run.complain()
    return record


if __name__ == "__main__":
    sys.excepthook = one_line
    main()
