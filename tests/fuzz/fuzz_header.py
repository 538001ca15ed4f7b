"""The header decoder under atheris: `python tests/fuzz/fuzz_header.py -runs=20000`."""

from coverage_guided import fuzz

if __name__ == "__main__":
    fuzz("header")
