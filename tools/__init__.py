"""Everything one runs: the `tensorfold` command, the benchmarks and the trainer."""
