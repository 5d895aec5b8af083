from datasets.utils.continual_dataset import ContinualDataset


class SequentialDigits(ContinualDataset):
    """scikit-learn's 8x8 handwritten digits: real data that needs no download."""

    NAME = "seq-digits"
    SOURCE = "digits"
    N_TASKS = 5
    SIZE = (8, 8)
    MEAN, STD = (0.3053,), (0.3761,)
    DEFAULTS = {"backbone": "mnistmlp", "n_epochs": 10, "batch_size": 32}
