"""The version of TensorFold: what the package is built with and what a receipt is hashed with.

Whatever gives a reply other bits than before is a new version, so that no receipt of one names the
other.
"""

VERSION = "0.2.0"
