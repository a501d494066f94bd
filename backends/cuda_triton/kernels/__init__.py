"""One file an op: block sizes and where they were tuned, kernels, launcher.

A row's bits never depend on the number of rows: what is summed in which order follows from the
width of a row and the shape of a weight alone, and tiles only say who does it.
"""
