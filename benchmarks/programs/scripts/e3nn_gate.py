"""An equivariant network on a point cloud."""

import torch
from e3nn import nn, o3
from e3nn.math import soft_one_hot_linspace, soft_unit_step

torch.manual_seed(0)


class Convolution(torch.nn.Module):
    def __init__(self, irreps_in, irreps_out):
        super().__init__()
        self.sh = o3.Irreps.spherical_harmonics(2)
        self.tp = o3.FullyConnectedTensorProduct(
            irreps_in, self.sh, irreps_out, shared_weights=False
        )
        self.fc = nn.FullyConnectedNet([6, 16, self.tp.weight_numel], torch.relu)

    def forward(self, f, pos, cutoff=2.0):
        source, target = torch.nonzero(torch.cdist(pos, pos) < cutoff, as_tuple=True)
        edge = pos[source] - pos[target]
        sh = o3.spherical_harmonics(self.sh, edge, True, normalization="component")
        emb = soft_one_hot_linspace(
            edge.norm(dim=1), 0.0, cutoff, 6, basis="smooth_finite", cutoff=True
        )
        message = self.tp(f[source], sh, self.fc(emb.mul(6**0.5)))
        message = soft_unit_step(10 * (1 - edge.norm(dim=1) / cutoff))[:, None] * message
        return torch.zeros(len(pos), message.shape[1]).index_add(0, target, message)


model = Convolution("4x0e", "4x0e + 2x1o")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _step in range(3):
    pos, f = torch.randn(8, 3), torch.randn(8, 4)
    loss = model(f, pos).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
