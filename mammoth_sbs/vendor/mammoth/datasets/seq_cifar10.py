from datasets.utils.continual_dataset import ContinualDataset


class SequentialCIFAR10(ContinualDataset):
    NAME = "seq-cifar10"
    SOURCE = "cifar10"
    N_TASKS = 5
    SIZE = (32, 32)
    MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2615)
    PADDING, FLIP = 4, True
    DEFAULTS = {"backbone": "resnet18", "n_epochs": 50, "batch_size": 32}
