"""The programs that users were shown, with what was left out filled in.

``LOGGER`` stands for the logger that each of them makes: the one that was shown, or that one among others.
Each writes down the losses that it computed, to compare with.
"""

from __future__ import annotations

PRELUDE = """
import json, os, sys
import torch
from stepwell.compat.itwinai import (
    ItwinaiLogger, LoggersCollection, MLFlowLogger, Prov4ML, TensorBoardLogger, TorchTrainer, WandBLogger,
)

torch.manual_seed(7)
torch.set_num_threads(1)
rank = int(os.environ.get("RANK", 0))
my_net = torch.nn.Linear(3, 1)
inputs = torch.randn(202, 3)
targets = inputs.sum(1, keepdim=True)
train_dataset = torch.utils.data.TensorDataset(inputs, targets)
validation_dataset = torch.utils.data.TensorDataset(inputs[:20], targets[:20])
train_dataloader = list(torch.utils.data.DataLoader(train_dataset, batch_size=2))
optimizer = torch.optim.SGD(my_net.parameters(), lr=0.01)
loss_criterion = torch.nn.functional.mse_loss
batch_losses, epoch_losses = [], []

def leave():
    with open(f"losses-{rank}.json", "w") as file:
        json.dump([batch_losses, epoch_losses], file)
"""

BASIC = """
my_logger = LOGGER
my_logger.create_logger_context()
for epoch in range(100):
    loss_accumulator = 0.0
    for batch_idx, batch in enumerate(train_dataloader):
        x, y = batch
        pred = my_net(x)
        loss = loss_criterion(y, pred)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        my_logger.log(
            item=loss.item(),
            identifier='my_training_loss_batch',
            kind='metric',
            batch_idx=batch_idx
        )
        batch_losses.append(loss.item())
        loss_accumulator += loss.item()
    epoch_loss = loss_accumulator / len(train_dataloader)
    my_logger.log(item=epoch_loss, identifier='my_training_loss_epoch', kind='metric')
    epoch_losses.append(epoch_loss)
my_logger.log(item=my_net, identifier='trained_model', kind='model')
my_logger.destroy_logger_context()
leave()
"""

DISTRIBUTED = (
    BASIC.replace("create_logger_context()", "create_logger_context(rank=int(os.environ['RANK']))")
    # There the last batch stands for the epoch.
    .replace("item=epoch_loss", "item=loss.item()")
    .replace("append(epoch_loss)", "append(loss.item())")
)

TRAINER = """
my_logger = LOGGER

class MyCustomTrainer(TorchTrainer):
    def train(self):
        for epoch in range(self.epochs):
            for batch_idx, batch in enumerate(self.train_dataloader):
                x, y = batch
                loss = self.loss(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                some_metric = loss.item()
                batch_losses.append(some_metric)
                self.logger.log(
                    item=some_metric,
                    identifier='my_training_loss_batch',
                    kind='metric',
                    batch_idx=batch_idx
                )
            self.logger.log(item=some_metric, identifier='my_training_loss_epoch', kind='metric')
            epoch_losses.append(some_metric)

my_trainer = MyCustomTrainer(
    config=dict(
        batch_size=2 // int(os.environ.get('WORLD_SIZE', 1)),
        loss='mse', optimizer='sgd', num_workers_dataloader=0,
    ),
    epochs=100,
    model=my_net,
    strategy='ddp',
    logger=my_logger
)
my_trainer.execute(train_dataset, validation_dataset)
leave()
"""

LIGHTNING = """
import pytorch_lightning as pl

class MyModel(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = my_net

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = loss_criterion(self.layer(x), y)
        self.log('my_training_loss_batch', loss)
        batch_losses.append(loss.item())
        return loss

    def on_train_epoch_end(self):
        self.log('my_training_loss_epoch', batch_losses[-1])
        epoch_losses.append(batch_losses[-1])

    def train_dataloader(self):
        size = 2 // int(os.environ.get('WORLD_SIZE', 1))
        return torch.utils.data.DataLoader(train_dataset, batch_size=size)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

my_model = MyModel()
my_prov_logger = LOGGER
my_lightning_logger = ItwinaiLogger(itwinai_logger=my_prov_logger)
trainer = pl.Trainer(
    logger=my_lightning_logger,
    max_epochs=3,
    log_every_n_steps=1,
    accelerator='cpu',
    enable_progress_bar=False,
    enable_model_summary=False,
    **({'strategy': 'ddp', 'devices': 2} if 'WORLD_SIZE' in os.environ else {}),
)
trainer.fit(my_model)
leave()
"""

SHOWN = {
    "basic": (BASIC, "MLFlowLogger(experiment_name='my_awesome_experiment', log_freq=100)"),
    "trainer": (TRAINER, "WandBLogger(project_name='my_awesome_experiment', log_freq=100)"),
    "distributed": (
        DISTRIBUTED,
        "MLFlowLogger(experiment_name='my_awesome_experiment', log_freq=100, log_on_workers=0)",
    ),
    "lightning": (LIGHTNING, "Prov4ML()"),
}
"""Each program, and the logger that was shown in it."""

ALL = (
    "LoggersCollection([MLFlowLogger(log_freq=100), WandBLogger(log_freq=100), "
    "TensorBoardLogger(log_freq=100), Prov4ML(log_freq=100)])"
)


def program(name: str, logger: str | None = None) -> str:
    """The program, with the logger that was shown in it, or another one."""
    code, shown = SHOWN[name]
    return PRELUDE + code.replace("LOGGER", logger or shown)


def fewer_epochs(code: str) -> str:
    """The same with 10 epochs in place of 100, where it is not about the program as it was shown."""
    return code.replace("range(100)", "range(10)").replace("epochs=100", "epochs=10")
