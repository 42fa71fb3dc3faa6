"""Trains nothing, and tells all about it: a run with every phase, for provenance tests.

python prov_program.py FOLDER RUN_ID [resume]; ranks as RANK and WORLD_SIZE say.
"""

from __future__ import annotations

import sys
from pathlib import Path

import stepwell
from stepwell import training
from stepwell.loggers import Logger

EPOCHS = 2


def main(folder: Path, run_id: str, resume: bool) -> None:
    config = {"lr": 0.1, "opt": {"name": "sgd", "momentum": 0.9}, "epochs": EPOCHS}
    run = stepwell.init("demo", dir=folder / "runs", run_id=run_id, resume=resume, config=config)
    logger = Logger(log_freq="batch", log_on_workers=-1)
    logger.create_logger_context(rank=run.rank)
    data = folder / "data.csv"
    data.write_text("x,y\n1,2\n")
    saved = folder / f"checkpoints-{run.rank}"
    saved.mkdir(exist_ok=True)
    with training.application():
        with training.model_init():
            pass
        with training.dataloader_init():
            logger.log(data, "train", kind="dataset", context="training")
            logger.log(data, "val", kind="dataset", context="validation")
        logger.log(7, "seed", kind="param")
        if run.attempt:
            with training.checkpoint_load() as span:
                span.add_attribute("checkpoint_path", str(saved))
        with training.training_loop(train_iterations_start=0):
            for epoch in range(EPOCHS):
                train(run.rank, epoch)
                with training.validation_loop():
                    stepwell.log({"val/accuracy": 0.5 + epoch / 4})
                step = 3 * (epoch + 1)
                path = saved / f"step-{step}.pt"
                with training.checkpoint_save(step, path=path):
                    path.write_bytes(b"w" * (100 + step))
                logger.log(b"weights %d" % epoch, "net", kind="artifact")
                logger.log({"epoch": epoch}, "net", kind="model", step=step)
        with training.testing_loop():
            stepwell.log({"test/accuracy": 0.75})
        logger.log("a note", "note", kind="text")
        logger.log({"cpu": 12.5}, "sys", kind="dict")
    logger.destroy_logger_context()
    run.finish()


def train(rank: int, epoch: int) -> None:
    for batch in range(3):
        with training.training_iteration():
            stepwell.log({"train/loss": 1 / (1 + epoch * 3 + batch) + rank})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], len(sys.argv) > 3)
