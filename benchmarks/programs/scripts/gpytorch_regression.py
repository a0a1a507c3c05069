"""An exact Gaussian process and a sparse variational classifier."""

import gpytorch
import torch

torch.manual_seed(0)


class ExactModel(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        rbf = gpytorch.kernels.RBFKernel()
        matern = gpytorch.kernels.MaternKernel(nu=2.5)
        self.covar_module = gpytorch.kernels.ScaleKernel(rbf + matern)

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Classifier(gpytorch.models.ApproximateGP):
    def __init__(self, points):
        distribution = gpytorch.variational.CholeskyVariationalDistribution(points.size(0))
        strategy = gpytorch.variational.VariationalStrategy(self, points, distribution)
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


x = torch.linspace(0, 1, 24)
y = torch.sin(x * 6) + 0.1 * torch.randn(24)
likelihood = gpytorch.likelihoods.GaussianLikelihood()
model = ExactModel(x, y, likelihood)
model.train()
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
with gpytorch.settings.max_cholesky_size(10):  # large data: conjugate gradients
    for _step in range(3):
        optimizer.zero_grad()
        loss = -mll(model(x), y)
        loss.backward()
        optimizer.step()
        print(f"exact {loss.item():.4f}")

inputs, labels = torch.rand(20, 2), torch.randint(0, 2, (20,)).float()
classifier = Classifier(inputs[:6].clone())
bernoulli = gpytorch.likelihoods.BernoulliLikelihood()
objective = gpytorch.mlls.VariationalELBO(bernoulli, classifier, num_data=20)
optimizer = torch.optim.Adam(classifier.parameters(), lr=0.05)
for _step in range(3):
    optimizer.zero_grad()
    loss = -objective(classifier(inputs), labels)
    loss.backward()
    optimizer.step()
    print(f"variational {loss.item():.4f}")
