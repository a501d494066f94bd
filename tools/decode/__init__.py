"""The parts of `tools/bench_decode.py`: engines of random weights, floors, clocks, the peer."""
