"""A training of pairs of images, as programs with sim_bench's telemetry are written.

Beside recording, it measures by itself what sim_bench measures, for the test to compare with.
"""

import json
import random
import sys
from pathlib import Path

import torch
import yaml
from torch import nn

from stepwell.compat import sim_bench as telemetry


class Pair(nn.Module):
    """Which of two images is the better one."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1))
        self.mlp = nn.Linear(16, 2)

    def forward(self, img1, img2):
        return self.mlp(torch.cat([self.backbone(img1), self.backbone(img2)], dim=1))


def make_loader(batches, size, seed):
    numbers = torch.Generator().manual_seed(seed)
    return [
        {
            "img1": torch.randn(size, 6, generator=numbers),
            "img2": torch.randn(size, 6, generator=numbers),
            "winner": torch.randint(0, 2, (size,), generator=numbers),
            "image1": [f"a{i}.jpg" for i in range(size)],
            "image2": [f"b{i}.jpg" for i in range(size)],
        }
        for _ in range(batches)
    ]


class Measured:
    """The numbers of sim_bench's document, computed parameter by parameter."""

    def __init__(self, config, val_loader, file):
        self.every = config["telemetry"]["collect_every_n"]
        self.size = config["telemetry"]["holdout_size"]
        self.val_loader, self.file = val_loader, file
        self.before = None

    def norms(self, tensors):
        groups = {"overall": 0.0, "backbone": 0.0, "head": 0.0}
        for name, tensor in tensors.items():
            square = tensor.double().square().sum().item()
            groups["overall"] += square
            groups["backbone" if "backbone" in name else "head"] += square
        return {name: square**0.5 for name, square in groups.items()}

    def note(self, model, optimizer, batch_idx, epoch, batch):
        if batch_idx % self.every != 0:
            return
        named = dict(model.named_parameters())
        weights = {name: parameter.detach().clone() for name, parameter in named.items()}
        before = self.before or weights
        rates = [group["lr"] for group in optimizer.param_groups]
        first = {key: torch.cat([one[key] for one in self.val_loader]) for key in ("img1", "img2")}
        labels = torch.cat([one["winner"] for one in self.val_loader])[: self.size]
        model.eval()
        with torch.no_grad():
            logits = model(first["img1"][: self.size], first["img2"][: self.size])
        model.train()
        ones = batch["winner"].double().mean().item() * 100
        record = {
            "batch_idx": batch_idx,
            "epoch": epoch,
            "gradient_norm": self.norms({name: one.grad for name, one in named.items()}),
            "weight_delta": self.norms({name: weights[name] - before[name] for name in weights}),
            "learning_rates": {
                "group_0": rates[0],
                "group_1": rates[1],
                "backbone": rates[0],
                "head": rates[1],
            },
            "holdout_logits": {
                "logits": logits.tolist(),
                "labels": labels.tolist(),
                "predictions": logits.argmax(1).tolist(),
                "accuracy": (logits.argmax(1) == labels).double().mean().item(),
            },
            "batch_stats": {
                "winner_0_pct": 100 - ones,
                "winner_1_pct": ones,
                "batch_size": len(batch["winner"]),
            },
        }
        self.before = weights
        self.file.write(json.dumps(record) + "\n")


def train_epoch(model, optimizer, loader, device, epoch, measured):
    model.train()
    for batch_idx, batch in enumerate(loader, 1):
        optimizer.zero_grad()
        outputs = model(batch["img1"].to(device), batch["img2"].to(device))
        loss = nn.functional.cross_entropy(outputs, batch["winner"].to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        telemetry.record(model, optimizer, batch_idx, epoch, device, batch)
        measured.note(model, optimizer, batch_idx, epoch, batch)


def main():
    config = yaml.safe_load(Path(sys.argv[1]).read_text())
    config["output_dir"] = Path("outputs")
    config["output_dir"].mkdir()
    random.seed(42)
    torch.manual_seed(42)
    device = torch.device("cpu")
    model = Pair().to(device)
    optimizer = torch.optim.AdamW(
        [
            {"params": model.backbone.parameters(), "lr": 1e-3},
            {"params": model.mlp.parameters(), "lr": 1e-2},
        ]
    )
    val_loader = make_loader(4, 3, seed=2)
    telemetry.init(config, val_loader)
    with open(config["output_dir"] / "measured.jsonl", "w") as file:
        measured = Measured(config, val_loader, file)
        for epoch in range(config["training"]["epochs"]):
            loader = make_loader(config["training"]["batches"], 8, seed=epoch)
            train_epoch(model, optimizer, loader, device, epoch, measured)


if __name__ == "__main__":
    main()
