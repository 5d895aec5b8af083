from datasets.utils.continual_dataset import ContinualDataset


class SequentialMNIST(ContinualDataset):
    NAME = "seq-mnist"
    SOURCE = "mnist"
    N_TASKS = 5
    SIZE = (28, 28)
    DEFAULTS = {"backbone": "mnistmlp", "n_epochs": 1, "batch_size": 64}
