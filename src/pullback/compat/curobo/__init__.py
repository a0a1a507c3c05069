"""The names of cuRobo's ``rollout.dynamics_model.integration_utils``, over ours.

Numbers are those of cuRobo v0.7.8 wherever it is right: from rest, and at every sample whose
stencil stays inside the horizon. The differences:

=====================================  ==========================================================
cuRobo v0.7.8                          here
=====================================  ==========================================================
kernels need CUDA, horizon <= 100,     any device, horizon and floating dtype
float32
outputs are the caller's buffers, so   outputs are fresh tensors; the same values are also
a second call changes the first        written into the buffers, outside of the graph; a buffer
one's results                          may be ``None``
``out_grad_position`` is overwritten   left alone: the gradient is a fresh tensor
by every backward
gradients reach ``u_act`` only         they reach ``u_act``, every start value and ``traj_dt``,
                                       to any order, in either mode, batched and compiled
backward difference: values before     they continue the start's parabola with dt, so that
the start use 1/dt where dt is meant   constant acceleration stays constant
central difference: they put the       all start values hold at one instant, that of ``q0``
start velocity two samples earlier
central difference: the gradients of   kept; horizons from 5 on are right
velocity, acceleration and jerk of
the last action are dropped; horizons
6 and 7 read out of bounds
``AccelerationTensorStepKernel``       ``v(T) = a T`` and ``q(T) = a T^2 / 2``: exact for an
advances velocity by half of ``a dt``  acceleration that is held over each step
acceleration steps have no backward    they are differentiable
``CliqueTensorStep`` drops the start   kept
gradient
``tensor_step_jerk``, ``_acc`` add a   a start state ``[batch, n]`` is one for each trajectory
start ``[batch, n]`` along the horizon
``build_fd_matrix`` ignores ``order``  refused, as are two of ``PREV_STATE``, ``FULL_RANK`` and
with ``FULL_RANK``                     ``SHIFT`` at once, of which one is ignored there
``interpolate_kernel`` with one step   the earlier value of each pair
is NaN (0 / 0)
``action_interpolate_kernel`` holds    every block holds its own last column; ``offset`` is an
column 1, right for ``h = 2`` only     argument
=====================================  ==========================================================

``traj_dt`` keeps its two meanings: the position kernels take ``1/dt`` and read its first element;
the acceleration kernels take seconds, one for each sample, of which the first is not used. The
indexed acceleration kernel is semi-implicit Euler, as there. The Functions are
`pullback.tensor.Function`, so also `torch.autograd.Function`, in the published combined form with
the published names, to be called, inherited from and overridden as there. The import path is
cuRobo's under ``pullback.compat``:
``pullback.compat.curobo.rollout.dynamics_model.integration_utils``. ``tensor_args`` is any object
with ``device`` and ``dtype``, a joint state any object with ``position``, ``velocity``,
``acceleration`` and ``jerk``.

Example:
    >>> import torch
    >>> from pullback.compat.curobo import tensor_linspace
    >>> tensor_linspace(torch.tensor(0.0), torch.tensor(1.0), 5)
    tensor([0.2000, 0.4000, 0.6000, 0.8000, 1.0000])
"""

from pullback.internal._extras import require_tensor as _require_tensor

_require_tensor("pullback.compat.curobo")

from pullback.compat.curobo import rollout
from pullback.compat.curobo.rollout.dynamics_model import integration_utils as _names
from pullback.compat.curobo.rollout.dynamics_model.integration_utils import *

__all__ = ["rollout", *_names.__all__]
