"""Denoise with learned shrinkage of wavelet coefficients."""

import torch
from pytorch_wavelets import DTCWTForward, DWTForward, DWTInverse

torch.manual_seed(0)
analyse, synthesise = DWTForward(J=2, wave="db2", mode="symmetric"), DWTInverse("db2", "symmetric")
complex_wavelets = DTCWTForward(J=2)
net = torch.nn.Conv2d(1, 1, 3, padding=1)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for _step in range(3):
    clean = torch.rand(2, 1, 16, 16)
    low, high = analyse(net(clean + 0.1 * torch.randn_like(clean)))
    denoised = synthesise((low, [torch.nn.functional.softshrink(h, 0.05) for h in high]))
    bands = complex_wavelets(denoised)[1]
    loss = (denoised - clean).square().mean() + sum(b.abs().mean() for b in bands)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
