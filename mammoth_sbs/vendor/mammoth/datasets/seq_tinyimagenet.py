from datasets.utils.continual_dataset import ContinualDataset


class SequentialTinyImagenet(ContinualDataset):
    """Tiny ImageNet, or as many of its 200 classes as are found."""

    NAME = "seq-tinyimg"
    SOURCE = "tinyimg"
    N_TASKS = 10
    SIZE = (64, 64)
    MEAN, STD = (0.4802, 0.4480, 0.3975), (0.2770, 0.2691, 0.2821)
    PADDING, FLIP = 4, True
    DEFAULTS = {"backbone": "resnet18", "n_epochs": 50, "batch_size": 32}
