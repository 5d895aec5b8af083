import inspect

import numpy as np

from mammoth_sbs.errors import UserError
from mammoth_sbs.values import SEED, at_least, number, text
from mammoth_sbs.watch import say, warn

from datasets.utils.continual_dataset import ContinualDataset
from datasets.utils.formats import BLOCK, FITS, Images, Source
from datasets.utils.own import Options, load_own
from utils.conf import base_path

MEASURED = 10_000  # training pictures that mean and deviation are measured on, at the most
ONE_CLASS = "a task has one class, so that learning speed says nothing, and Task-IL is 100 % by itself"
AUGMENT = ("none", "crop", "flip", "crop-flip")


class SequentialFolder(ContinualDataset):
    """A user's own pictures (docs/data.md). Tasks are classes, or with `--domains` domains, where classes stay."""

    NAME = "seq-folder"
    SOURCE = "own"
    N_TASKS = 5
    SIZE = (64, 64)
    DEFAULTS = {"backbone": "resnet18", "n_epochs": 20, "batch_size": 32}
    FLAGS = {
        "data": (inspect.Parameter.empty, text, "a folder of pictures, <class>/* or train/<class>/* and "
                 "test/<class>/*; parquet files of the Hugging Face Hub; an .npz; here or below --base_path"),
        "size": (None, at_least(4, 512), "side of the squares that pictures become (default: as they are, if all have "
                 "one size of up to 128 x 128, else 64; or --image_size, if a network with weights wants more)"),
        "fit": (FITS[0], FITS, "how pictures become squares: the middle cut out, or stretched"),
        "domains": (None, text, "tasks are domains, and all have the same classes: a column of the parquet files, an "
                    "array of the .npz, or for <domain>/<class>/* the word folder (default: tasks are classes)"),
        "test_share": (0.2, number(above=0, below=1), "of each class, for testing, if there is no test split"),
        "split_seed": (0, SEED, "that share is drawn by it; runs with other seeds have the same"),
        "augment": (AUGMENT[0], AUGMENT, "what training does to pictures: shifted by up to an eighth, mirrored"),
    }

    def get_source(self) -> Source:
        args = self.args
        options = Options(args.data, args.size, args.fit, args.domains, args.test_share, args.split_seed)
        it, source = load_own(options, base_path(), say)
        images = source.train.images[:: -(-len(source.train.images) // MEASURED)]
        self.MEAN, self.STD = (tuple(float(f"{x:.4f}") for x in of) for of in moments(images))
        self.STD = tuple(max(x, 1e-3) for x in self.STD)  # of pictures that are all alike
        self.SIZE = source.train.images.shape[2:]
        self.PADDING = min(self.SIZE) // 8 if args.augment.startswith("crop") else 0
        self.FLIP = args.augment.endswith("flip")
        self.N_TASKS = usual_tasks(args.max_classes or len(it.classes))
        if it.domain is None and not args.joint and \
                (args.n_tasks or self.N_TASKS) == (args.max_classes or len(it.classes)):
            warn(f"--data {args.data}: {ONE_CLASS}")
        if it.domain is None or args.joint:
            return source if it.domain is None else by_class(source, len(it.classes), it.classes)[0]
        self.N_TASKS, self.SETTING = len(it.domains), "domain-il"
        if args.n_tasks not in (None, self.N_TASKS):
            raise UserError(f"--n_tasks {args.n_tasks}: --domains {args.domains} has {self.N_TASKS}, a task each; "
                            "leave it out")
        if args.max_classes is not None or args.second_task:
            raise UserError("--domains: all tasks have all classes; leave out --max_classes and --second_task")
        source, domains = by_class(source, len(it.classes), it.classes)
        self.domains = (*domains, it.domains)
        return source


def usual_tasks(classes: int) -> int:
    """Five tasks, or what is next to it and divides the classes, two or more for each if that can be."""
    return min((n for n in range(1, classes + 1) if classes % n == 0),
               key=lambda n: (n < 2, classes // n < 2, abs(n - 5), -n))


def moments(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each channel, from 0 to 1; of bytes it is enough to count each value, block by block."""
    counts = np.zeros((images.shape[1], 256), np.int64)
    for first in range(0, len(images), BLOCK):
        for channel, count in enumerate(counts):
            count += np.bincount(images[first : first + BLOCK, channel].ravel(), minlength=256)
    levels, share = np.arange(256) / 255, counts / counts.sum(1, keepdims=True)
    mean = share @ levels
    return mean, np.sqrt((share * (levels - mean[:, None]) ** 2).sum(1))


def by_class(source: Source, count: int, classes: list[str]) -> tuple[Source, tuple[np.ndarray, np.ndarray]]:
    """A source whose classes are those of one domain each, as one of classes alone; and everybody's domain."""
    from datasets.utils.own import BETWEEN

    names = [name.split(BETWEEN) for name in source.classes]
    order = sorted({domain for domain, _ in names}, key=[domain for domain, _ in names].index)
    domain, label = np.array([(order.index(d), classes.index(c)) for d, c in names]).T
    train, test = (Images(part.images, label[part.labels]) for part in source[:2])
    return Source(train, test, classes), (domain[source.train.labels], domain[source.test.labels])
