from datasets.utils.continual_dataset import ContinualDataset


class SequentialQuickDraw(ContinualDataset):
    """Quick, Draw! (Google, CC-BY 4.0): drawings of 345 classes, 80 and 20 of each, for streams of many tasks."""

    NAME = "seq-quickdraw"
    SOURCE = "quickdraw"
    N_TASKS = 23
    SIZE = (28, 28)
    MEAN, STD = (0.1496,), (0.3107,)
    DEFAULTS = {"backbone": "mnistmlp", "n_epochs": 10, "batch_size": 32}
