"""Train features that tell classes but not domains apart, with a reversed gradient."""

import torch
from pytorch_revgrad import RevGrad
from torch import nn

torch.manual_seed(0)
classes = torch.randint(0, 2, (256,))
domains = torch.randint(0, 2, (256,))
points = torch.randn(256, 6)
points[:, 0] += 3.0 * classes
points[:, 1] += 3.0 * domains

features = nn.Sequential(nn.Linear(6, 16), nn.Tanh())
label_head = nn.Linear(16, 2)
domain_head = nn.Sequential(RevGrad(alpha=0.7), nn.Linear(16, 2))
parts = nn.ModuleList([features, label_head, domain_head])
optimizer = torch.optim.Adam(parts.parameters(), lr=0.01)
for _ in range(200):
    optimizer.zero_grad()
    hidden = features(points)
    label_loss = nn.functional.cross_entropy(label_head(hidden), classes)
    domain_loss = nn.functional.cross_entropy(domain_head(hidden), domains)
    (label_loss + domain_loss).backward()
    optimizer.step()
print(f"class loss {label_loss:.3f}, domain loss {domain_loss:.3f} (0.693 is chance)")
