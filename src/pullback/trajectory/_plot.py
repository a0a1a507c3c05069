"""`plot`: position, velocity, acceleration and jerk of a motion over time."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal._arguments import checked
from pullback.internal._extras import require
from pullback.trajectory._limits import ENDLESS, Limits, check_limits, range_of
from pullback.trajectory._motion import Motion, check_finite

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # annotations are read when it is called first

__all__ = ["plot"]

_LABELS = {
    "position": "position\n[rad]",
    "velocity": "velocity\n[rad/s]",
    "acceleration": "acceleration\n[rad/s²]",
    "jerk": "jerk\n[rad/s³]",
}
_FORBIDDEN = "#c0392b"
# Room beyond the widest limit, in parts of it, for the shade and its words.
_BEYOND = 0.2
_LEGEND_COLUMNS = 8
_MARK = {"linestyle": "none", "marker": "o", "markersize": 5, "markerfacecolor": "white",
         "clip_on": False, "zorder": 5}  # fmt: skip
# Of the range of a joint: a limit so near is met.
_MET = 1e-4


@checked
def plot(
    motion: Motion,
    limits: Limits | None = None,
    *,
    points: Tensor | None = None,
    times: Tensor | Sequence[float] | None = None,
    labels: Sequence[str] | None = None,
    title: str | None = None,
) -> "Figure":
    """Draw a motion: four panels over one time axis, one line for each joint.

    What lies beyond a limit is shaded, with the size of the limit in the shade. Where joints have
    different limits, the shade begins at the widest one, and each narrower limit is a dashed line
    in the colour of its joint. Where a joint is at a limit, that is a thick line of its colour. The
    million radians, or radians a second, of a joint that turns without end are no limit to draw.
    The jerk is drawn in steps, as `minimum_jerk` holds it, from each sample to the next.

    Arguments:
        motion: ``[horizon, dof]``, one trajectory.
        limits: for one trajectory.
        points: ``[count, dof]``, marked in the first panel at their times within the motion.
        times: ``[count]`` seconds, with points.
        labels: a name for each joint.
        title: above the panels.

    Returns:
        a figure of its own (no global state of matplotlib is touched): call ``savefig``, or show
        it as the last value of a notebook's cell.

    Raises:
        MissingExtraError: matplotlib is not installed.
        ArgumentError: a batch of trajectories, numbers that are not finite, or parts that do not
            fit the motion.
        ArgumentTypeError: not a motion, or a part that is no such thing.

    Example:
        >>> import torch
        >>> from pullback.trajectory import Limits, minimum_jerk, plot
        >>> motion = minimum_jerk(torch.tensor([[0.0], [1.0]]), 1.0)
        >>> figure = plot(motion, Limits(velocity=2.0))
        >>> [axes.get_ylabel().split()[0] for axes in figure.axes]
        ['position', 'velocity', 'acceleration', 'jerk']
    """
    names = _check(motion, limits, points, times, labels)
    require("matplotlib", extra="plot", purpose="plot")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 8.0), layout="constrained")
    panels = figure.subplots(4, 1, sharex=True)
    seconds = motion.times.detach().cpu().double()
    for axes, kind in zip(panels, _LABELS, strict=True):
        values = getattr(motion, kind).detach().cpu().double()
        style = "steps-post" if kind == "jerk" else "default"
        for joint, name in enumerate(names):
            look = {"color": _colour(joint), "label": name, "linewidth": 1.6, "drawstyle": style}
            axes.plot(seconds, values[:, joint], **look)
        if limits is not None and kind in limits.given:
            _shade(axes, seconds, _ends(limits, kind, motion), values, style)
        _dress(axes, kind, seconds)
    if points is not None:
        _mark(panels[0], points, times)
    panels[-1].set_xlabel("time [s]")
    figure.align_ylabels(panels)
    handles, columns = panels[0].get_lines()[: len(names)], min(len(names), _LEGEND_COLUMNS)
    look: Any = {"loc": "outside lower center", "frameon": False, "fontsize": 9}
    figure.legend(handles, names, ncols=columns, **look)
    if title is not None:
        figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    return figure


def _colour(joint: int) -> str:
    return f"C{joint % 10}"


def _dress(axes: Any, kind: str, seconds: Tensor) -> None:
    axes.set_ylabel(_LABELS[kind], fontsize=9)
    axes.set_xlim(float(seconds[0]), float(seconds[-1]))
    axes.axhline(0, color="0.75", linewidth=0.7, zorder=0)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _ends(limits: Limits, kind: str, motion: Motion) -> tuple[Tensor, Tensor]:
    """The ends of each joint, infinite where it turns without end, or as fast as it likes."""
    lower, upper = (
        end.detach().cpu().double().expand(motion.dof)
        for end in range_of(limits, kind, motion.position)
    )
    if kind not in ("position", "velocity"):
        return lower, upper
    return lower.where(lower > -ENDLESS, -torch.inf), upper.where(upper < ENDLESS, torch.inf)


def _shade(
    axes: Any, seconds: Tensor, ends: tuple[Tensor, Tensor], values: Tensor, style: str
) -> None:
    drawn = torch.cat([*ends, values.flatten()])
    low, high = map(float, drawn[drawn.isfinite()].aminmax())
    room = _BEYOND * max(high - low, 1e-12) / 2
    low, high = low - room, high + room
    narrow, outers = False, []
    widths = (ends[1] - ends[0]).tolist()
    for bounds, outer, far in ((ends[1], ends[1].max(), high), (ends[0], ends[0].min(), low)):
        if outer.isfinite():
            outers.append((float(outer), far))
            axes.axhspan(*sorted(outers[-1]), color=_FORBIDDEN, alpha=0.12, linewidth=0)
            axes.axhline(float(outer), color=_FORBIDDEN, linewidth=0.9, alpha=0.7)
        for joint, bound in enumerate(bounds.tolist()):
            if math.isinf(bound):
                continue
            if bound != outer:
                narrow = True
                axes.axhline(bound, color=_colour(joint), linewidth=0.9, linestyle="--", alpha=0.7)
            met = (values[:, joint] - bound).abs() < _MET * min(widths[joint], high - low)
            if bool(met.any()):
                look = {"color": _colour(joint), "linewidth": 5, "alpha": 0.45, "zorder": 1,
                        "drawstyle": style}  # fmt: skip
                _draw_active(axes, seconds, met, bound, look)
    axes.set_ylim(low, high)
    _name(axes, outers, "widest limit" if narrow else "limit")


def _name(axes: Any, outers: list[tuple[float, float]], words: str) -> None:
    """Words in the shade beyond each limit; one of them where both are of one size."""
    if len(outers) == 2 and outers[0][0] == -outers[1][0]:
        del outers[1]
    look = {"ha": "right", "va": "center_baseline", "fontsize": 7, "color": _FORBIDDEN}
    for end, far in outers:
        place, frame = (0.995, (end + far) / 2), axes.get_yaxis_transform()
        axes.annotate(f"{words} {end:.6g}", place, xycoords=frame, **look)


def _draw_active(axes: Any, seconds: Tensor, met: Tensor, bound: float, look: Any) -> None:
    """A thick line along a limit where it is met, and a dot where it is at one sample alone."""
    beside = torch.nn.functional.pad(met, (1, 1))
    alone = (met & ~beside[:-2] & ~beside[2:]).tolist()
    line = torch.where(met, bound, torch.nan)
    axes.plot(seconds, line, label="active", marker="o", markersize=5, markevery=alone, **look)


def _mark(axes: Any, points: Tensor, times: Tensor | Sequence[float] | None) -> None:
    at = torch.as_tensor(times, device="cpu").detach().double()
    first, last = axes.get_xlim()
    within = (at >= first) & (at <= last)  # marks on an end of the axis are not clipped
    for joint, column in enumerate(points.detach().cpu().double().unbind(-1)):
        axes.plot(at[within], column[within], **_MARK, markeredgecolor=_colour(joint))


def _check(
    motion: Motion,
    limits: Limits | None,
    points: Tensor | None,
    times: Tensor | Sequence[float] | None,
    labels: Sequence[str] | None,
) -> list[str]:
    """Refuse what cannot be drawn; returns the names of the joints."""
    if motion.position.dim() != 2 or motion.horizon < 2:
        raise ArgumentError(
            "One trajectory of two samples or more can be drawn.",
            given=f"shape {tuple(motion.position.shape)}",
            expected="[horizon, dof]",
            mend="Choose one of the batch.",
        )
    if motion.position.is_meta or (points is not None and points.is_meta):
        raise ArgumentTypeError("What lies on meta has no numbers to draw.")
    check_finite(motion)
    if limits is not None:
        check_limits(limits, motion.position)
        ends = [end for kind in limits.given for end in range_of(limits, kind, motion.position)]
        if any(end.dim() > 1 for end in ends):
            raise ArgumentError(
                "There must be limits for one trajectory.",
                given=f"shapes {', '.join(str(tuple(end.shape)) for end in ends)}",
                expected=f"numbers, or [{motion.dof}]",
                mend="Choose those of this trajectory.",
            )
    if (points is None) != (times is None):
        raise ArgumentError("Points are marked at their times: give both or neither.")
    marks = torch.as_tensor(() if times is None else times, device="cpu")
    if points is not None and (
        points.dim() != 2 or points.shape[-1] != motion.dof or marks.shape != points.shape[:1]
    ):
        raise ArgumentError(
            "The points do not fit the motion.",
            given=f"points {tuple(points.shape)}, times {tuple(marks.shape)}",
            expected=f"[count, {motion.dof}] and [count]",
        )
    names = [f"joint {i}" for i in range(motion.dof)] if labels is None else list(labels)
    if len(names) != motion.dof:
        raise ArgumentError(
            "There must be one label for each joint.", given=f"{len(names)} for {motion.dof}"
        )
    return names
