"""Facility support: 200 messages with urgency, sentiment and categories."""

import json
from pathlib import Path
from typing import Any

from pullback.compat.afnio._variable import Variable
from pullback.errors import ArgumentError

__all__ = ["FacilitySupport"]

SOURCE = (
    "https://raw.githubusercontent.com/meta-llama/prompt-ops/main/use-cases/"
    "facility-support-analyzer/facility_v2_test.json"
)
FILE = "facility_v2_test.json"


class FacilitySupport:
    """The facility support dataset, in three splits of 33, 33 and 34 %.

    A sample is a message and a tuple of urgency, sentiment and categories, each a Variable. The
    file is read from ``<root>/FacilitySupport/facility_v2_test.json``; it is not fetched.

    Arguments:
        split: ``"train"``, ``"val"`` or ``"test"``.
        root: the folder of datasets; ``data`` if None.

    Raises:
        ValueError: the split is unknown, or the file is not there.
    """

    def __init__(self, split: str, root: str | Path | None = None) -> None:
        if split not in ("train", "val", "test"):
            raise ArgumentError("The split is unknown.", given=repr(split),
                                expected="'train', 'val' or 'test'")  # fmt: skip
        path = Path(root or "data") / "FacilitySupport" / FILE
        if not path.is_file():
            raise ArgumentError("The dataset is not there.", given=str(path),
                                mend=f"Put the file from {SOURCE} there.")  # fmt: skip
        rows = json.loads(path.read_text(encoding="utf-8"))
        first, second = (len(rows) * 33) // 100, (len(rows) * 66) // 100
        chosen = {"train": rows[:first], "val": rows[first:second], "test": rows[second:]}[split]
        self._samples = [_sample(row) for row in chosen]

    def __getitem__(self, index: int) -> Any:
        return self._samples[index]

    def __len__(self) -> int:
        return len(self._samples)


def _sample(row: dict[str, Any]) -> Any:
    message = row["fields"]["input"] if "fields" in row else row["input"]
    answer = json.loads(row["answer"]) if isinstance(row["answer"], str) else row["answer"]
    labels = (
        Variable(answer["urgency"], "urgency"),
        Variable(answer["sentiment"], "sentiment"),
        Variable(json.dumps(answer["categories"]), "categories"),
    )
    return Variable(message, "message"), labels
