from datasets.utils.continual_dataset import ContinualDataset


class SequentialCIFAR100(ContinualDataset):
    NAME = "seq-cifar100"
    SOURCE = "cifar100"
    N_TASKS = 10
    SIZE = (32, 32)
    MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
    PADDING, FLIP = 4, True
    DEFAULTS = {"backbone": "resnet18", "n_epochs": 50, "batch_size": 32,
                "lr_scheduler": "multisteplr", "lr_milestones": [35, 45]}
