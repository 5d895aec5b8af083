"""Speed-Based Sampling in a plain PyTorch loop: the lines marked # SBS are all it takes."""

import torch
from sklearn.datasets import load_digits

from mammoth_sbs import LearningSpeed, SpeedBand

EPOCHS, BUFFER_SIZE = 10, 100
x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
x = x.float() / 16
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)

speed = LearningSpeed(len(x))  # SBS: one count per example
for epoch in range(EPOCHS):
    for index in torch.randperm(len(x)).split(32):
        logits = net(x[index])
        loss = torch.nn.functional.cross_entropy(logits, y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        speed.update(index, logits.argmax(1) == y[index], epoch)  # SBS: from logits that were computed anyway

generator = torch.Generator().manual_seed(0)
band = SpeedBand(q=0.2, s=0.2)  # SBS
kept = band.split(speed.value, generator).kept  # SBS: the task without its quickest and slowest learned examples
buffer = kept[torch.randperm(len(kept), generator=generator)[:BUFFER_SIZE]]  # SBS: uniform from the rest

low, high = band.limits(speed.value)
print(f"{len(buffer)} of {len(x)} examples to replay, learned at speeds {low:.1f} to {high:.1f}")
