"""`History`: the last moments of every tensor, in a ring of bounded size."""

from collections import deque
from collections.abc import Iterable

import numpy as np

from pullback.errors import ArgumentError
from pullback.tracking.run._identity import Place
from pullback.tracking.run._points import POINT_BYTES, Points, decode_points, encode_points

__all__ = ["History"]


class History:
    """A ring of frames; a frame is one moment of training, four bytes a tensor.

    Which tensors a frame is of is almost always the same from one frame to the next, so it is
    stored once and shared.

    Arguments:
        limit: how many frames are kept; the oldest makes room for the newest.

    Raises:
        ArgumentError: the limit is not positive.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ArgumentError(
                "A history keeps at least one moment.",
                given=f"history={limit}",
                expected="a number of steps, 1 or more",
            )
        self.dropped = 0
        self._frames: deque[tuple[Place, bytes, np.ndarray]] = deque(maxlen=limit)
        self._layouts: dict[bytes, bytes] = {}

    def add(self, place: Place, identifiers: Iterable[int], rows: np.ndarray) -> None:
        """Append a frame: at a moment, the rows of the tensors with these numbers."""
        layout = np.fromiter(identifiers, np.int32).tobytes()
        layout = self._layouts.setdefault(layout, layout)
        if len(self._frames) == self._frames.maxlen:
            self.dropped += 1
        self._frames.append((place, layout, encode_points(rows)))
        if len(self._layouts) > 2 * len(self._frames) + 2:
            kept = {layout for _, layout, _ in self._frames}
            self._layouts = {layout: layout for layout in kept}

    @property
    def nbytes(self) -> int:
        """How many bytes the ring holds now."""
        points = sum(points.nbytes for _, _, points in self._frames)
        return points + sum(len(layout) for layout in self._layouts)

    def __len__(self) -> int:
        return len(self._frames)

    def by_tensor(self) -> dict[int, Points]:
        """For each tensor's number, its points in order."""
        if not self._frames:
            return {}
        numbers = np.concatenate([np.frombuffer(a, np.int32) for _, a, _ in self._frames])
        lengths = [len(points) for _, _, points in self._frames]
        steps = np.repeat([place.step for place, _, _ in self._frames], lengths)
        batches = np.repeat([place.microbatch for place, _, _ in self._frames], lengths)
        points = np.concatenate([points for _, _, points in self._frames])
        order = np.argsort(numbers, kind="stable")
        found, starts = np.unique(numbers[order], return_index=True)
        groups = np.split(order, starts[1:])
        return {
            int(number): decode_points(steps[group], batches[group], points[group])
            for number, group in zip(found, groups, strict=True)
        }

    @staticmethod
    def point_bytes() -> int:
        """The size of one point, in bytes."""
        return POINT_BYTES
