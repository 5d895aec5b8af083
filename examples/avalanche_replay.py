"""Speed-Based Sampling in Avalanche: the lines marked # SBS are all it takes. `pip install mammoth-sbs[avalanche]`"""

import warnings

warnings.filterwarnings("ignore")
warnings.showwarning = lambda *_, **__: None  # Avalanche's, about its next version, which no filter keeps away

import torch  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

from mammoth_sbs.avalanche import SampledBuffer, SpeedPlugin  # noqa: E402  SBS, and before avalanche is imported

# isort: split
from avalanche.benchmarks.scenarios.deprecated.generators import nc_benchmark  # noqa: E402
from avalanche.models import SimpleMLP  # noqa: E402
from avalanche.training.plugins import ReplayPlugin  # noqa: E402
from avalanche.training.storage_policy import ReservoirSamplingBuffer  # noqa: E402
from avalanche.training.supervised import Naive  # noqa: E402

MEMORY, EPOCHS = 50, 10


class Digits(torch.utils.data.Dataset):
    def __init__(self, test: bool) -> None:
        x, y = load_digits(return_X_y=True)
        self.x = torch.tensor(x[int(test) :: 2] / 16, dtype=torch.float32)
        self.targets = y[int(test) :: 2].tolist()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.x[i], self.targets[i]


def accuracy(model: torch.nn.Module, experiences: list) -> float:
    model.eval()
    right = [(model(torch.stack([x for x, *_ in e.dataset])).argmax(1) == torch.tensor(list(e.dataset.targets))).float()
             for e in experiences]
    return 100 * float(torch.cat(right).mean())


for name in ("Avalanche's reservoir", "SBS"):
    benchmark = nc_benchmark(Digits(False), Digits(True), n_experiences=5, task_labels=False, seed=0)
    torch.manual_seed(0)
    model = SimpleMLP(num_classes=10, input_size=64, hidden_size=100)
    speed = SpeedPlugin()  # SBS: counts, from the strategy's own forward passes
    policy = SampledBuffer(MEMORY, speed) if name == "SBS" else ReservoirSamplingBuffer(MEMORY)  # SBS
    strategy = Naive(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), train_mb_size=16,
                     train_epochs=EPOCHS, evaluator=None,
                     plugins=[ReplayPlugin(MEMORY, storage_policy=policy), speed])  # SBS
    print(f"{name}:")
    for i, experience in enumerate(benchmark.train_stream):
        strategy.train(experience)
        learned, held = speed.of(experience.dataset), speed.of(policy.buffer)
        print(f"  experience {i + 1}: {len(learned)} examples learned at {learned.mean():.2f}, memory of {len(held)} "
              f"at {held.mean():.2f}, accuracy so far {accuracy(model, benchmark.test_stream[: i + 1]):.1f} %")
