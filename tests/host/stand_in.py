"""A checkout that stands in for Mammoth where there is none: the embedded host, with those ways of Mammoth's that make
a difference to who calls it. What only Mammoth itself can show is tried with MAMMOTH_ROOT."""

from __future__ import annotations

import shutil
from pathlib import Path

from mammoth_sbs import host

MAIN = '''
import os, sys, uuid
from pathlib import Path
import torch

torch.set_num_threads(2)
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import datasets, models
os.chdir(HERE)
import embedded_main

LACKS = {"--n_tasks", "--train_per_class", "--test_per_class", "--lr_later", "--as_paper", "--shared_first_task"}


def parse_args(cmd=None, verbose=False):
    assert Path.cwd() == HERE and sys.argv[1:] == cmd, (Path.cwd(), sys.argv, cmd)
    unknown = [word for word in cmd if word in LACKS]
    if unknown:
        print("usage: main.py\\nmain.py: error: unrecognized arguments:", *unknown, file=sys.stderr)
        sys.exit(2)
    embedded_main.get_model_names = models.get_model_names
    args = embedded_main.parse_args(cmd)
    args.n_tasks = datasets.utils.load_dataset_config(args.dataset_config, args.dataset).get("N_TASKS")
    args.conf_jobnum = str(uuid.uuid4())
    for name in ("shared_first_task", "lr_later"):
        delattr(args, name)
    return args


def initialize(args):
    assert Path.cwd() == HERE
    args.lr_later, args.shared_first_task = None, getattr(args, "shared_first_task", None)
    return embedded_main.initialize(args)


if __name__ == "__main__":
    from utils.training import train
    train(*initialize(parse_args(sys.argv[1:])))
'''
TRAINING = '''

def train(model, dataset, args):
    if not args.disable_log:
        logger = object()
    for task in range(args.start_from or 0, args.stop_after or dataset.N_TASKS):
        model.net.train()
        dataset.get_data_loaders()
        model.meta_begin_task(dataset)
        train_task(model, dataset, args)
        model.meta_end_task(dataset)
        dataset.log(args, logger, evaluate(model, dataset), task, dataset.SETTING)
'''
LOG = '''

def log(self, args, logger, accs, t, setting, epoch=None, prefix="RESULT", future=False):
    from utils.loggers import print_mean_accuracy
    print_mean_accuracy(accs, t + 1, False)


ContinualDataset.log = log
'''
CONFIG = '''

def load_dataset_config(name, dataset):
    return {"N_CLASSES": 10}
'''
DATASETS = '''

def get_dataset_class(args):
    return get_dataset_names()[args.dataset]
'''


def make_checkout(folder: Path) -> Path:
    """The stand-in, in a new folder."""
    shutil.copytree(host.EMBEDDED, folder, ignore=shutil.ignore_patterns("2tasks.yaml", "__pycache__"))
    (folder / "main.py").rename(folder / "embedded_main.py")
    (folder / "main.py").write_text(MAIN)
    for file, text in (("utils/training.py", TRAINING), ("datasets/utils/continual_dataset.py", LOG),
                       ("datasets/utils/__init__.py", CONFIG), ("datasets/__init__.py", DATASETS)):
        with (folder / file).open("a") as f:
            f.write(text)
    return folder
