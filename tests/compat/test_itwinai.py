"""The names of itwinai, which are ours under another roof."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stepwell import loggers
from stepwell.compat import itwinai
from tests.harness import environment
from tests.loggers.logged import Own


def test_the_loggers_are_ours() -> None:
    for name in itwinai.__all__:
        if hasattr(loggers, name) and name != "TensorBoardLogger":
            assert getattr(itwinai, name) is getattr(loggers, name)
    assert itwinai.Prov4ML is loggers.Prov4MLLogger
    assert itwinai.TensorBoardLogger().framework == "pytorch"
    assert isinstance(itwinai.TensorBoardLogger(framework="tensorflow"), loggers.TensorBoardLogger)
    assert itwinai.MLFlowLogger().experiment_name == itwinai.BASE_EXP_NAME


def test_the_trainer_and_the_lightning_logger() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("lightning")
    from stepwell.integrations.lightning.logger import StepwellLogger
    from stepwell.integrations.torch.trainer import TorchTrainer

    assert issubclass(itwinai.TorchTrainer, TorchTrainer)
    own = Own()
    found = itwinai.ItwinaiLogger(itwinai_logger=own, log_model="all", skip_finalize=True)
    assert isinstance(found, StepwellLogger)
    assert (found.logger, found.log_model, found.keep_open) == (own, "all", True)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        itwinai.Nothing  # type: ignore[attr-defined]  # noqa: B018


def test_whoever_only_logs_needs_no_torch() -> None:
    code = "import stepwell.compat.itwinai, sys; print({'torch', 'lightning', 'mlflow'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
