"""Reconstruct an image from radial k-space samples."""

import torch
import torchkbnufft

torch.manual_seed(0)
points = torch.rand(2, 40) * 2 * torch.pi - torch.pi
forward = torchkbnufft.KbNufft(im_size=(8, 8))
adjoint = torchkbnufft.KbNufftAdjoint(im_size=(8, 8))
truth = torch.randn(1, 1, 8, 8, dtype=torch.complex64)
data = forward(truth, points)
image = torch.zeros(1, 1, 8, 8, dtype=torch.complex64, requires_grad=True)
optimizer = torch.optim.Adam([image], lr=0.1)
for _step in range(3):
    residual = forward(image, points) - data
    loss = residual.abs().square().mean() + adjoint(residual, points).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
