"""The autograd Functions of the kernel libraries in use, checked: docs/kernels-in-use.md."""
