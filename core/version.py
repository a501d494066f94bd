"""The version of TensorFold: what the package is built with and what a receipt is hashed with."""

VERSION = "0.1.0"
