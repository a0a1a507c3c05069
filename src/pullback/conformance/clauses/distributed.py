"""`distributed`: right on several ranks: collectives have the adjoint that their forward needs."""

from pullback.conformance._clause import Finding, Probe, clause

__all__ = ["distributed"]


@clause(
    why="A wrong adjoint of a collective raises no error: gradients are too large by the number of "
    "ranks, those of other ranks are missing, or each rank trains on another model. A collective "
    "that one rank leaves out stops all of them, hours later and without a word.",
    breach="on 2 to 16 processes of this machine, all moving together: as the derivative of "
    "`sum_r <w_r, y_r>` by finite differences off from `sum_r <gradient_r, v_r>`, and of the one "
    "loss that all ranks share too; as other numbers where a rank comes late, shards or cotangents "
    "are not contiguous, or one rank needs fewer gradients; with uneven shards, and a rank that "
    "holds nothing; as ranks that wait for each other.",
    mend="Give each collective its adjoint (of a sum a sum, of a gather a sum and scatter, of a "
    "broadcast a reduction), call it on every rank, wait for it, and keep what it writes apart.",
    gradient=False,
)
def distributed(probe: Probe) -> Finding:
    """Nothing is known of ranks that nobody asked for; `_distributed` judges those asked for."""
    return probe.skipped("No ranks are asked for: pass ranks=2.")
