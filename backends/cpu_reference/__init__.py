"""The reference backend: the ops of the table on a CPU, row-exact."""
