"""`Trainer`: runs epochs over an agent."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pullback.errors import ArgumentError
from pullback.tape import no_grad
from pullback.text import train

__all__ = ["Trainer"]


class Trainer(train.Trainer):
    """Runs epochs: see `pullback.text.train.Trainer`.

    Arguments:
        max_epochs: how many epochs.
        enable_checkpointing: whether a checkpoint is written after each epoch.
        enable_progress_bar: whether a line a step is shown.
        default_root_dir: where the folder ``checkpoint`` is made; here if None.

    What is used is counted by `pullback.text.lm.Account`; ``llm_clients`` is taken and not needed.
    """

    def __init__(
        self,
        *,
        max_epochs: int = 1,
        enable_checkpointing: bool = True,
        enable_progress_bar: bool = True,
        default_root_dir: str | Path | None = None,
    ) -> None:
        folder = Path(default_root_dir or ".") / "checkpoint" if enable_checkpointing else None
        super().__init__(max_epochs, folder=folder, progress=enable_progress_bar)

    def fit(  # type: ignore[bad-override]
        self,
        agent: Any,
        train_dataloader: Any = None,
        val_dataloader: Iterable[Any] | None = None,
        ckpt_path: str | Path | None = None,
        llm_clients: Any = None,
    ) -> train.Result:
        """Train; the agent ends with the texts that scored best in validation."""
        return super().fit(agent, train_dataloader, val_dataloader, resume=ckpt_path)

    def validate(  # type: ignore[bad-override]
        self, agent: Any, val_dataloader: Any = None, llm_clients: Any = None
    ) -> dict[str, float]:
        """The means of the metrics of ``validation_step``, by names that start with ``val_``."""
        return _renamed("val", super().validate(agent, val_dataloader))

    def test(  # type: ignore[bad-override]
        self, agent: Any, test_dataloader: Any = None, llm_clients: Any = None
    ) -> dict[str, float]:
        """The means of the metrics of ``test_step``, by names that start with ``test_``."""
        return _renamed("test", super().test(agent, test_dataloader))

    def predict(self, agent: Any, dataloader: Any = None, llm_clients: Any = None) -> list[Any]:
        """What ``predict_step(batch, number)``, or the agent itself, gives for each batch."""
        if dataloader is None:
            raise ArgumentError("There is no data.", mend="Pass a dataloader.")
        step = getattr(agent, "predict_step", lambda batch, number: agent(batch))
        agent.eval()
        with no_grad():
            return [step(batch, number) for number, batch in enumerate(dataloader)]


def _renamed(stage: str, metrics: dict[str, float]) -> dict[str, float]:
    return {f"{stage}_{'loss' if k == 'score' else k}": v for k, v in metrics.items()}
