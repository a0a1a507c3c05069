"""`Trainer`: runs epochs over an agent."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.tape import no_grad
from pullback.text import train

__all__ = ["Trainer"]


class Trainer(train.Trainer):
    """Runs epochs: see `pullback.text.train.Trainer`.

    Arguments:
        max_epochs: how many epochs.
        enable_checkpointing: whether a checkpoint is written after each epoch.
        enable_progress_bar: whether a line a step is shown.
        enable_agent_summary: whether the parameters are shown before training.
        default_root_dir: where the folder ``checkpoint`` is made; here if None.
    """

    def __init__(
        self,
        *,
        max_epochs: int | None = None,
        enable_checkpointing: bool | None = True,
        enable_progress_bar: bool | None = True,
        enable_agent_summary: bool | None = True,
        default_root_dir: str | Path | None = None,
    ) -> None:
        folder = Path(default_root_dir or ".") / "checkpoint" if enable_checkpointing else None
        super().__init__(
            1 if max_epochs is None else max_epochs, folder=folder,
            progress=bool(enable_progress_bar),
        )  # fmt: skip
        self._summary = bool(enable_agent_summary) and bool(enable_progress_bar)

    def fit(  # type: ignore[bad-override]
        self,
        agent: Any,
        train_dataloader: Any = None,
        val_dataloader: Iterable[Any] | None = None,
        ckpt_path: str | Path | None = None,
        llm_clients: Iterable[Any] | None = (),
    ) -> train.Result:
        """Train; the agent ends with the texts that scored best in validation.

        Raises:
            AttributeError: the agent lacks a step.
            TypeError: an argument is of another type.
            ValueError: there is no training data.
        """
        data = _given(train_dataloader, "train_dataloader")
        if self._summary:
            for name, parameter in agent.named_parameters():
                print(f"{name}: {parameter.role} ({len(str(parameter.data))} characters)")
        clients = llm_clients or ()
        return super().fit(agent, data, val_dataloader, resume=ckpt_path, clients=clients)

    def validate(  # type: ignore[bad-override]
        self, agent: Any, val_dataloader: Any = None, llm_clients: Iterable[Any] | None = ()
    ) -> dict[str, float]:
        """The means of the metrics of ``validation_step``, by names that start with ``val_``."""
        return _renamed("val", super().validate(agent, _given(val_dataloader, "val_dataloader")))

    def test(  # type: ignore[bad-override]
        self, agent: Any, test_dataloader: Any = None, llm_clients: Iterable[Any] | None = ()
    ) -> dict[str, float]:
        """The means of the metrics of ``test_step``, by names that start with ``test_``."""
        return _renamed("test", super().test(agent, _given(test_dataloader, "test_dataloader")))

    def predict(
        self, agent: Any, dataloader: Any = None, llm_clients: Iterable[Any] | None = ()
    ) -> list[Any]:
        """What ``predict_step(batch, number)``, or the agent itself, gives for each batch."""
        step = getattr(agent, "predict_step", lambda batch, number: agent(batch))
        batches = _given(dataloader, "dataloader")
        agent.eval()
        with no_grad():
            return [step(batch, number) for number, batch in enumerate(batches)]


def _renamed(stage: str, metrics: dict[str, float]) -> dict[str, float]:
    return {f"{stage}_{'loss' if k == 'score' else k}": v for k, v in metrics.items()}


def _given(data: Any, name: str) -> Any:
    if data is None:
        raise ArgumentError("There is no data.", mend=f"Pass {name}=...")
    if not isinstance(data, Iterable):
        raise ArgumentTypeError(f"{name} cannot be iterated.", given=type(data).__name__)
    return data
