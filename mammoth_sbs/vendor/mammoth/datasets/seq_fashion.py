from datasets.utils.continual_dataset import ContinualDataset


class SequentialFashion(ContinualDataset):
    """Fashion-MNIST: clothes in grey, as large a set as MNIST and harder."""

    NAME = "seq-fashion"
    SOURCE = "fashion"
    N_TASKS = 5
    SIZE = (28, 28)
    MEAN, STD = (0.2860,), (0.3530,)
    DEFAULTS = {"backbone": "mnistmlp", "n_epochs": 5, "batch_size": 32}
