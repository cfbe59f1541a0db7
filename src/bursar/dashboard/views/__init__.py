"""The pages, one module a kind. A view is built once for each visitor and refreshed with each
sample; it shows figures of the sample and of nothing else."""
