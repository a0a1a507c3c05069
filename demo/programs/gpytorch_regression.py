"""Fit two Gaussian processes, with an RBF and with a Matern covariance, to a noisy sine."""

import gpytorch
import torch


class Process(gpytorch.models.ExactGP):
    """An exact Gaussian process with a constant mean."""

    def __init__(self, points, values, likelihood, kernel) -> None:
        super().__init__(points, values, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel)

    def forward(self, points):
        """The value at each point."""
        return gpytorch.distributions.MultivariateNormal(
            self.mean_module(points), self.covar_module(points)
        )


def main() -> None:
    """Train and print the result."""
    torch.manual_seed(0)
    points = torch.linspace(0, 1, 30)
    values = torch.sin(6 * points) + 0.1 * torch.randn(30)
    for kernel in (gpytorch.kernels.RBFKernel(), gpytorch.kernels.MaternKernel(nu=2.5)):
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        process = Process(points, values, likelihood, kernel)
        process.train()
        likelihood.train()
        optimizer = torch.optim.Adam(process.parameters(), lr=0.1)
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, process)
        for _ in range(60):
            optimizer.zero_grad()
            loss = -objective(process(points), values)
            loss.backward()
            optimizer.step()
        scale = kernel.lengthscale.item()
        print(f"{type(kernel).__name__:<13} loss {loss.item():.3f}  lengthscale {scale:.3f}")


if __name__ == "__main__":
    main()
