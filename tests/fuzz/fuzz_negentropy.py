"""Reconciliation messages under atheris: `python tests/fuzz/fuzz_negentropy.py -runs=20000`."""

from coverage_guided import fuzz

if __name__ == "__main__":
    fuzz("negentropy")
