"""The command line, put together from the method, the data set and the network that it names."""

from __future__ import annotations

import argparse
import inspect
import shlex
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from mammoth_sbs.errors import UserError
from mammoth_sbs.files import read_yaml
from mammoth_sbs.parser import Parser, spelled, suggest
from mammoth_sbs.values import SEED, at_least, number, text

import datasets
from backbone import HELP, REGISTERED_BACKBONES, backbone_flags
from datasets.utils.tasks import SECOND_TASKS
from utils import binary_to_boolean_type as binary

# what `--online 1` stands for
ONLINE = {"n_epochs": 1, "batch_size": 10, "minibatch_size": 10, "eval_steps": 250}


class ArgumentParser(Parser):
    """Of a run."""

    own_defaults: dict[str, Any]  # before a loaded checkpoint changed them

    def unknown(self, flag: str) -> str:
        return of_others(flag, self) or super().unknown(flag)


def of_others(flag: str, parser: argparse.ArgumentParser) -> str:
    """'--alpha is a flag of der, derpp, ...', if other methods or networks than those of `parser` have it."""
    from models import get_model_names  # they import this module

    model, network = parser.get_default("model"), parser.get_default("backbone")
    dataset, owners, flag = parser.get_default("dataset"), [], spelled(flag)
    for name, cls in get_model_names().items():
        other = argparse.ArgumentParser(add_help=False)
        other.add_argument("--dataset", default=dataset)
        with suppress(UserError):  # of a user's file that does not import
            cls.get_parser(other)
        if flag in other._option_string_actions:
            owners.append(name)
    if f"{model}-sbs" in owners:
        return f"{flag} is a flag of the _sbs models, and --model is {model}; take --model {model}_sbs"
    if owners:
        return f"{flag} is a flag of other methods, not of {model}: {', '.join(owners)}"
    owners = [name for name in datasets.get_dataset_names() if flag.lstrip("-") in datasets.dataset_flags(name)]
    if owners:
        return f"{flag} is a flag of other data sets, not of {dataset}: {', '.join(owners)}"
    owners = [name for name in REGISTERED_BACKBONES if flag.lstrip("-") in backbone_flags(name)]
    return f"{flag} is a flag of other networks, not of {network}: {', '.join(owners)}" if owners else ""


def one_of(flag: str, known: Iterable[str], given: str) -> str:
    """`given`, if it is known (`_` and `-` are the same)."""
    name = given if given in known else given.replace("_", "-")
    if name not in known:
        hint = suggest(name, known) or "."
        raise UserError(f"--{flag} {given}: not known{hint} There are: {', '.join(sorted(known))}")
    return name


def add_rehearsal_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Flags of methods with a buffer."""
    parser.add_argument("--buffer_size", type=at_least(1, 10**7), required=True, help="examples in the replay buffer")
    parser.add_argument("--minibatch_size", type=at_least(1), help="replayed examples per step (default: batch_size)")
    return parser


def add_as_paper_arg(parser: argparse.ArgumentParser, what: str) -> None:
    """For the methods that Mammoth implements differently from their paper."""
    parser.add_argument("--as_paper", type=binary, default=False, help=f"1: as the method's paper, {what}")


def add_initial_args(parser: argparse.ArgumentParser) -> None:
    """Flags that decide which other flags there are."""
    parser.add_argument("--model", type=text, help="the method")
    parser.add_argument("--extra_models", type=text, metavar="DIR",
                        help="a folder with files of further methods, as in Mammoth's models/ (default: none)")
    parser.add_argument("--dataset", type=text, help="the data set")
    parser.add_argument("--backbone", type=text, help="the network")
    parser.add_argument("--dataset_config", type=text, help="a named split or setting of the data set, such as 2tasks")
    parser.add_argument("--model_config", type=lambda name: {"base": "default"}.get(name, name), default="default",
                        choices=["default", "best"],
                        help="best: the hyper-parameters of the method's paper for this data set; base is default")
    parser.add_argument("--online", type=binary, default=False,
                        help="1: a stream in small batches, each example seen once; stands for "
                             + " ".join(f"--{flag} {value}" for flag, value in ONLINE.items()))
    parser.add_argument("--loadcheck", type=text, help="checkpoint to load; its arguments become the defaults")


def add_experiment_args(parser: argparse.ArgumentParser, n_tasks: int) -> None:
    """Flags of the experiment itself."""
    add = parser.add_argument_group("experiment").add_argument
    add("--lr", type=number(above=0), required=True, help="learning rate")
    add("--lr_later", type=number(above=0), nargs="+", metavar="LR",
        help="learning rates of the tasks after the first; the last one holds for all that follow (default: --lr)")
    add("--n_epochs", type=at_least(1), help="epochs per task")
    add("--batch_size", type=at_least(1), help="examples per step")
    add("--optimizer", choices=["sgd", "adam", "adamw", "adagrad"], default="sgd", help="optimiser")
    add("--optim_wd", type=number(0), default=0.0, help="weight decay")
    add("--optim_mom", type=number(0, below=1), default=0.0, help="momentum")
    add("--optim_nesterov", type=binary, default=False, help="Nesterov momentum")
    add("--lr_scheduler", choices=["multisteplr", "cosine", "None"], help="learning-rate schedule within a task")
    add("--lr_milestones", type=at_least(1), nargs="+", default=[], help="epochs at which multisteplr lowers the rate")
    add("--sched_multistep_lr_gamma", type=number(above=0, most=1), default=0.1, help="by what it multiplies the rate")
    add("--drop_last", type=binary, default=False, help="drop a last batch that is not full")
    add("--joint", type=int, choices=(0, 1), default=0, help="1: all classes in one task")
    add("--validation", type=number(above=0, most=90),
        help="per cent of each class held out of training (below 1: the fraction), evaluated in place of the test set "
             "until the end")
    add("--n_tasks", type=at_least(1), help=f"cut the classes into this many tasks (default: {n_tasks})")
    add("--max_classes", type=at_least(2), help="use the first classes only (default: all)")
    add("--train_per_class", type=at_least(1), help="use this many training images of each class (default: all)")
    add("--test_per_class", type=at_least(1), help="evaluate on this many images of each class (default: all)")
    add("--custom_class_order", type=text, metavar="CLASSES",
        help="the order in which classes arrive, by number, range or name: 0-24,50-74. As many as there are classes, "
             "or as --max_classes says; --permute_classes is ignored (default: the data set's own)")
    add("--class_order", type=text, metavar="FILE", help="likewise from a file, a class per line (default: none)")
    add("--second_task", choices=SECOND_TASKS, help="what the second task is instead of its classes: the first task's "
        "images turned by 90, 180 or 270 degrees, with the turn as class; or its own images with random labels")


def add_management_args(parser: argparse.ArgumentParser) -> None:
    """Flags of where, how long and how loud."""
    add = parser.add_argument_group("management").add_argument
    add("--seed", type=SEED, help="random seed (default: drawn, and recorded)")
    add("--permute_classes", type=binary, default=False, help="put the classes in random order first")
    add("--base_path", type=text, default="./data/", help="where data sets are, and results go")
    add("--results_path", type=text, default="results/", help="where results go, below base_path")
    add("--checkpoint_path", type=text, default="./checkpoints/", help="where checkpoints go")
    add("--savecheck", choices=["epoch", "task", "last"],
        help="save a checkpoint after every epoch (the newest is kept), after every task, or after the last task")
    add("--resume", type=binary, nargs="?", const=True, default=False,
        help="go on from the newest checkpoint of this same run, or start if there is none: the same command line can "
             "be given again and again; saves after every epoch if --savecheck does not say otherwise")
    add("--ckpt_name", type=text, help="name of the checkpoints (default: made from model, data set, seed and a "
                                       "digest of all flags that make the run)")
    add("--start_from", type=at_least(0), help="index of the first task to train (default: where loadcheck ended)")
    add("--stop_after", type=at_least(1), help="number of tasks after which to stop (default: all)")
    add("--device", type=text, help="cpu, cuda:0, ... (default: the first GPU, else the CPU)")
    add("--compile", type=binary, default=False, help="1: compile the network, once a minute or two; faster on a CPU")
    add("--code_optimization", "-O", type=int, choices=(0, 1, 2, 3), default=0,
        help="as in Mammoth, for a GPU: 1 lets matrix products use TF32; 2 bfloat16; 3 that and --compile 1")
    add("--num_workers", type=at_least(0), help="accepted and not needed: batches are made in the training process")
    add("--debug_mode", type=binary, default=False, help="a few steps per epoch only")
    add("--non_verbose", type=binary, default=False, help="no progress bars")
    add("--disable_log", type=binary, default=False, help="write no result file")
    add("--enable_other_metrics", type=binary, default=False, help="measure forward transfer too: test accuracy on "
        "each task before it is learned, and that of the untrained network")
    add("--eval_epochs", type=at_least(1), help="test accuracy on all tasks so far after every so many epochs, printed "
        "and saved (default: after each task only)")
    add("--eval_steps", type=at_least(1), help="the same after every so many steps of a task, saved only; the mean is "
        "the average anytime accuracy")


def add_board_args(parser: argparse.ArgumentParser) -> None:
    """Flags of TensorBoard and Weights & Biases; the latter's are Mammoth's."""
    add = parser.add_argument_group("boards").add_argument
    add("--tensorboard", type=text, metavar="DIR",
        help="show the run to TensorBoard, in a folder of its own below DIR")
    add("--wandb_entity", type=text, help="show the run to Weights & Biases: as whom; needs --wandb_project too")
    add("--wandb_project", type=text, help="of which project; needs --wandb_entity too")
    add("--wandb_name", type=text, help="under which name (default: the model's)")


def dataset_config(dataset: str, name: str | None) -> dict[str, Any]:
    """The flags that `--dataset_config` stands for."""
    if name is None:
        return {}
    known = datasets.get_dataset_config_names(dataset)
    if name not in known:
        raise UserError(f"--dataset_config {name}: {dataset} has {', '.join(known) or 'none'}{suggest(name, known)}")
    config = read_yaml(datasets.CONFIGS / dataset / f"{name}.yaml")
    config["n_tasks"] = config.pop("N_TASKS", None)
    return {key: value for key, value in config.items() if value is not None and not key.startswith("N_CLASSES")}


def add_flags(parser: argparse.ArgumentParser, title: str, found: dict[str, tuple[Any, ...]]) -> None:
    """Flags of a network or a data set, by its function's signature; those that every run has stay as they are."""
    group = parser.add_argument_group(title)
    for name, (default, kind, *told) in found.items():
        if not any(action.dest == name for action in parser._actions):
            required = default is inspect.Parameter.empty
            limited = {"choices": kind} if isinstance(kind, tuple) else {"type": kind}
            group.add_argument(f"--{name}", **limited, default=None if required else default, required=required,
                               help=told[0] if told else HELP.get(name, f"of {title.split()[-1]}"))


def command_line(args: argparse.Namespace, parser: ArgumentParser) -> str:
    """The flags that differ from their defaults, and what decides on those, as one would type them."""
    words = []
    for action in parser._actions:
        value = getattr(args, action.dest, None)
        chosen = action.dest in ("model", "dataset", "backbone") or value != parser.own_defaults[action.dest]
        if chosen and action.dest != "help":
            words.append(action.option_strings[0])
            values = value if isinstance(value, list) else [value]
            words += [str(int(v) if isinstance(v, bool) else v) for v in values]
    return shlex.join(words)


def unused(args: argparse.Namespace) -> list[str]:
    """A line for flags that were given and change nothing."""
    lines = []
    if args.optimizer != "sgd" and (args.optim_mom or args.optim_nesterov):
        lines.append(f"--optim_mom, --optim_nesterov change nothing with --optimizer {args.optimizer}")
    usual = datasets.get_dataset_names()[args.dataset].DEFAULTS.get("lr_milestones", []), 0.1
    if args.lr_scheduler != "multisteplr" and (args.lr_milestones, args.sched_multistep_lr_gamma) != usual:
        lines.append("--lr_milestones, --sched_multistep_lr_gamma change nothing without --lr_scheduler multisteplr")
    if not getattr(args, "frozen", True) and args.head_hidden != backbone_flags(args.backbone)["head_hidden"][0]:
        lines.append("--head_hidden changes nothing without --frozen 1")
    return lines


def no_duplicate_flags(cmd: list[str]) -> None:
    """Two values for one flag are a mistake; argparse would silently take the last."""
    flags = [spelled(word.split("=")[0]) for word in cmd if word.startswith("--")]
    for flag in flags:
        if flags.count(flag) > 1:
            raise UserError(f"{flag} is given {flags.count(flag)} times; give it once")
