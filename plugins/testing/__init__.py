"""The place of the conformance kit that plugins written elsewhere inherit their tests from."""
