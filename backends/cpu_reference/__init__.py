"""The reference backend: every op row-exact on the CPU, in float32."""
