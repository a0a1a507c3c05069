"""TabNet on a table."""

import numpy as np
from pytorch_tabnet.tab_model import TabNetClassifier

rng = np.random.default_rng(0)
x = rng.normal(size=(64, 6)).astype(np.float32)
y = (x[:, 0] + x[:, 1] > 0).astype(int)
for mask in ("sparsemax", "entmax"):
    model = TabNetClassifier(n_d=4, n_a=4, n_steps=2, mask_type=mask, verbose=1, seed=0)
    model.fit(x, y, max_epochs=2, batch_size=32, virtual_batch_size=16)
